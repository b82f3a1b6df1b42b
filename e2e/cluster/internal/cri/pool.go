package cri

import (
	"errors"
	"sync"
)

// pool hands out the host numbers of a node's /24, 2 to 254, going round: an address just given back is used last,
// so that a caller with a stale one meets silence and not another pod.
type pool struct {
	mu   sync.Mutex
	used map[int]bool
	last int
}

const firstHost, lastHost = 2, 254

func newPool() *pool { return &pool{used: map[int]bool{}, last: firstHost - 1} }

func (p *pool) take() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for range lastHost - firstHost + 1 {
		p.last++
		if p.last > lastHost {
			p.last = firstHost
		}
		if !p.used[p.last] {
			p.used[p.last] = true
			return p.last, nil
		}
	}
	return 0, errors.New("every pod address of this node is in use")
}

func (p *pool) give(host int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.used, host)
}
