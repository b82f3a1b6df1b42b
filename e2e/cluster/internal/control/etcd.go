package control

import (
	"fmt"
	"net/url"

	"go.etcd.io/etcd/server/v3/embed"

	"tandem.dev/e2e/cluster/internal/config"
)

const (
	etcdURL     = "http://127.0.0.1:2379"
	etcdPeerURL = "http://127.0.0.1:2380"
)

func runEtcd(s *config.State) error {
	c := embed.NewConfig()
	c.Dir = s.Path("etcd")
	c.LogLevel = "warn"
	// The data need not outlive the machine: waiting for the disk would only slow every write of every test.
	c.UnsafeNoFsync = true
	c.ListenClientUrls, c.AdvertiseClientUrls = urls(etcdURL), urls(etcdURL)
	c.ListenPeerUrls, c.AdvertisePeerUrls = urls(etcdPeerURL), urls(etcdPeerURL)
	c.InitialCluster = c.InitialClusterFromName(c.Name)
	etcd, err := embed.StartEtcd(c)
	if err != nil {
		return fmt.Errorf("start etcd: %w", err)
	}
	return <-etcd.Err()
}

func urls(text string) []url.URL {
	u, err := url.Parse(text)
	if err != nil {
		panic(err) // a constant of this file
	}
	return []url.URL{*u}
}
