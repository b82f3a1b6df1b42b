#!/usr/bin/env bash
# What the one machine needs from Debian, installed once: Prometheus (and promtool), nftables for Services, iproute2 for
# namespaces, libibverbs1 for Mooncake's transfer engine (which links it even where no RDMA card is), openssl for the tests of TLS,
# libfaketime for the test in which the operator's clock is set.
set -euo pipefail
need=()
command -v prometheus >/dev/null || need+=(prometheus)
command -v nft >/dev/null || need+=(nftables)
command -v ip >/dev/null || need+=(iproute2)
ldconfig -p | grep -q libibverbs.so.1 || need+=(libibverbs1)
command -v openssl >/dev/null || need+=(openssl)
ls /usr/lib/*/faketime/libfaketime.so.1 >/dev/null 2>&1 || need+=(libfaketime)
python3 -c 'import ensurepip' 2>/dev/null || need+=(python3-venv)
[ ${#need[@]} -eq 0 ] && exit 0
echo "installing from Debian: ${need[*]}"
apt-get update -qq
# Debian starts a packaged Prometheus on :9090; ours runs as a pod, so its service stays down.
env DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
if [ -d /run/systemd/system ] && [[ " ${need[*]} " == *" prometheus "* ]]; then systemctl disable --now prometheus; fi
