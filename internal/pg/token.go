package pg

import "sync"

// others are the parts of the server that wait for a token of their own instead of a queue: the clock.
type others struct {
	mu        sync.Mutex
	listening bool
	hear      map[string]func()
}

// OnToken has f called at every notification that carries token, and when the connection that listens
// comes or goes, until stop is called. f must not block.
func (l *Listener) OnToken(token string, f func()) (stop func()) {
	l.others.mu.Lock()
	defer l.others.mu.Unlock()
	if l.others.hear == nil {
		l.others.hear = map[string]func(){}
	}
	l.others.hear[token] = f
	return func() {
		l.others.mu.Lock()
		defer l.others.mu.Unlock()
		delete(l.others.hear, token)
	}
}

// Listening tells whether notifications arrive at present.
func (l *Listener) Listening() bool {
	l.others.mu.Lock()
	defer l.others.mu.Unlock()
	return l.others.listening
}

func (o *others) connected(listening bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listening = listening
	for _, f := range o.hear {
		f()
	}
}

func (o *others) heard(token string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if f := o.hear[token]; f != nil {
		f()
	}
}
