package pg

import "sync"

// others are the parts of the server that wait for a token instead of a queue: the clock.
type others struct {
	mu      sync.Mutex
	backend int32 // of the connection that listens; 0: there is none
	hear    map[string]func()
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

// Backend is the process id of the session that listens, while notifications arrive; else 0.
func (l *Listener) Backend() int32 {
	l.others.mu.Lock()
	defer l.others.mu.Unlock()
	return l.others.backend
}

func (o *others) connected(backend int32) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.backend = backend
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
