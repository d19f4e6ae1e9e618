package httpapi

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/jwt"
)

// tokenLogPause is the least time between two log lines about tokens that are refused for the same
// reason: anybody can send bad tokens, and must not fill the log.
const tokenLogPause = time.Minute

// refusedTokens tell the log why tokens are refused, because callers are not told. The zero value
// is ready to use.
type refusedTokens struct {
	mu sync.Mutex
	by map[jwt.Reason]*refusedToken // at most one for each reason that internal/jwt has
}

type refusedToken struct {
	loggedAt time.Time
	since    int // refused since then
}

// note logs a refusal, or counts it for the next line about its reason. The line has no part of the
// token but claims that were verified.
func (r *refusedTokens) note(log *slog.Logger, err error, now time.Time) {
	reason := jwt.ReasonOf(err)
	r.mu.Lock()
	if r.by == nil {
		r.by = map[jwt.Reason]*refusedToken{}
	}
	of := r.by[reason]
	if of == nil {
		of = &refusedToken{}
		r.by[reason] = of
	}
	of.since++
	tokens := of.since
	due := now.Sub(of.loggedAt) >= tokenLogPause
	if due {
		*of = refusedToken{loggedAt: now}
	}
	r.mu.Unlock()
	if due {
		// A token that is no JWT decides how long its error is.
		text := err.Error()
		log.Warn("a token is refused", "reason", string(reason), "tokens", tokens,
			"error", strings.ToValidUTF8(text[:min(len(text), 300)], ""))
	}
}
