package soak

import (
	"bytes"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// proxy passes TCP connections through. It can cut, delay and refuse them.
type proxy struct {
	listener net.Listener
	target   string
	delay    atomic.Int64 // nanoseconds that each piece of data waits
	refuse   atomic.Bool
	watch    atomic.Pointer[watch]

	mu    sync.Mutex
	pairs map[*pair]bool
}

// watch is a text that is expected to pass through a proxy.
type watch struct {
	text   []byte
	passed atomic.Bool
}

// expect makes the proxy watch for a text, in place of the text before.
func (p *proxy) expect(text string) { p.watch.Store(&watch{text: []byte(text)}) }

func (p *proxy) passed() bool { return p.watch.Load().passed.Load() }

type pair struct{ client, server *net.TCPConn }

func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: target, pairs: map[*pair]bool{}}
	go p.run()
	t.Cleanup(func() {
		listener.Close()
		p.cut(nil)
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) run() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		go p.serve(client.(*net.TCPConn))
	}
}

func (p *proxy) serve(client *net.TCPConn) {
	defer client.Close()
	if p.refuse.Load() {
		_ = client.SetLinger(0)
		return
	}
	conn, err := net.DialTimeout("tcp", p.target, 5*time.Second)
	if err != nil {
		_ = client.SetLinger(0)
		return
	}
	server := conn.(*net.TCPConn)
	defer server.Close()
	both := &pair{client, server}
	p.mu.Lock()
	p.pairs[both] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.pairs, both)
		p.mu.Unlock()
	}()
	var ways sync.WaitGroup
	ways.Go(func() { p.pass(server, client) })
	ways.Go(func() { p.pass(client, server) })
	ways.Wait()
}

func (p *proxy) pass(to, from *net.TCPConn) {
	buffer, tail := make([]byte, 32<<10), []byte(nil)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			if delay := time.Duration(p.delay.Load()); delay > 0 {
				time.Sleep(delay)
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				_ = from.CloseRead()
				return
			}
			if w := p.watch.Load(); w != nil {
				// The text may come in two pieces.
				tail = append(tail, buffer[:n]...)
				if bytes.Contains(tail, w.text) {
					w.passed.Store(true)
				}
				tail = append(tail[:0], tail[max(0, len(tail)-len(w.text)):]...)
			}
		}
		if err != nil {
			_ = to.CloseWrite()
			return
		}
	}
}

// cut ends the connections, at random in good order or by a reset. With a random source it ends most of
// them, else all.
func (p *proxy) cut(r *rand.Rand) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for both := range p.pairs {
		if r != nil {
			switch r.IntN(4) {
			case 0:
				continue
			case 1:
				_ = both.client.SetLinger(0)
				_ = both.server.SetLinger(0)
			case 2:
				// The client's side is reset first: data that it has sent may still arrive.
				_ = both.client.SetLinger(0)
				both.client.Close()
				continue
			}
		}
		both.client.Close()
		both.server.Close()
	}
}
