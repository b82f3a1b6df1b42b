"""KV transfer: a decode worker promises pages (a ticket), a prefill worker pushes finished chunks into them."""
