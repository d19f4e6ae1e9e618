// Package jwt verifies JSON Web Tokens and returns the caller's tenant and scopes. Keys come from a
// file (keys.go) or from the URL of a key set (remote.go). It knows neither routes nor the
// database: internal/http decides what a caller may do with its scopes.
package jwt

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/ojs-pg/ojs-pg/internal/names"
)

// Errors of Verify. ErrInvalid: the token is bad. ErrAway: the keys could not be fetched; a later try
// may succeed.
var (
	ErrInvalid = errors.New("the token is not valid")
	ErrAway    = errors.New("the keys that tokens are signed with cannot be read at the moment")
)

// Scopes are what a token can allow. It may hold others, which are for other services.
var Scopes = []string{"produce", "work", "read", "admin", AllTenants}

// AllTenants is the scope without which a token needs a tenant, unless it has the scope admin. An
// issuer that forgets the tenant would make tokens for all tenants otherwise.
const AllTenants = "all-tenants"

// Config says which tokens are accepted.
type Config struct {
	KeyFile string // public keys in PEM, or the bytes of a secret; or
	KeysURL string // a JSON Web Key Set

	Issuer   string // that iss must name; required
	Audience string // that aud must hold; required: a token for another service must not open this one

	TenantClaim string // default tenant_id
	ScopeClaim  string // default scope: one text with spaces, or an array
	QueuesClaim string // default queues: one text with spaces, or an array
}

// Caller is the identity in a verified token.
type Caller struct {
	Subject string  // at most 255 visible characters: it stands in logs and in the audit trail
	Tenant  *string // nil: all tenants; the token has the scope admin or AllTenants
	Scopes  []string
	Queues  []string // nil: all queues
	Expires time.Time
}

const (
	skew      = 10 * time.Second // by which clocks may disagree
	memory    = time.Minute      // for which a token is not checked again, unless it ends sooner
	maxTokens = 10_000           // that are remembered
)

var visible = regexp.MustCompile(`^[!-~]{1,255}$`)

// Verifier verifies tokens.
type Verifier struct {
	cfg    Config
	keys   source
	now    func() time.Time
	expect jwt.Expected

	mu    sync.Mutex
	known map[[sha256.Size]byte]remembered
}

// source finds the keys that may have signed a token.
type source interface {
	find(ctx context.Context, kid string, alg jose.SignatureAlgorithm) ([]key, error)
}

type remembered struct {
	caller *Caller
	until  time.Time
}

// New makes a Verifier and reads the keys of a file. Keys of a URL are read with the first token,
// or by Prime.
func New(cfg Config) (*Verifier, error) {
	if (cfg.KeyFile == "") == (cfg.KeysURL == "") {
		return nil, errors.New("a JWT needs one source of keys: a file, or the URL of a key set")
	}
	if cfg.Issuer == "" || cfg.Audience == "" {
		return nil, errors.New("a JWT is believed from an issuer and for an audience: both have to be named")
	}
	cfg.TenantClaim, cfg.ScopeClaim = cmp.Or(cfg.TenantClaim, "tenant_id"), cmp.Or(cfg.ScopeClaim, "scope")
	cfg.QueuesClaim = cmp.Or(cfg.QueuesClaim, "queues")
	v := &Verifier{
		cfg: cfg, now: time.Now, known: map[[sha256.Size]byte]remembered{},
		expect: jwt.Expected{Issuer: cfg.Issuer, AnyAudience: jwt.Audience{cfg.Audience}},
	}
	var err error
	if cfg.KeyFile != "" {
		v.keys, err = readFile(cfg.KeyFile)
	} else {
		v.keys, err = newRemote(cfg.KeysURL)
	}
	if err != nil {
		return nil, err
	}
	return v, nil
}

// Prime reads a key set at once, so that a wrong address is noticed at the start. Keys of a file
// have been read by New.
func (v *Verifier) Prime(ctx context.Context) error {
	if r, ok := v.keys.(*remote); ok {
		return r.read(ctx)
	}
	return nil
}

// Verify returns the identity in a token. The error is ErrInvalid with the reason, which is for the
// log only, or ErrAway. A valid token is accepted for a minute without another check, but not
// beyond its end: to check a signature costs as much as to answer many requests.
func (v *Verifier) Verify(ctx context.Context, token string) (*Caller, error) {
	hash, now := sha256.Sum256([]byte(token)), v.now()
	v.mu.Lock()
	known, ok := v.known[hash]
	v.mu.Unlock()
	if ok && now.Before(known.until) {
		return known.caller, nil
	}
	caller, err := v.check(ctx, token, now)
	if err != nil {
		return nil, err
	}
	until := now.Add(memory)
	if end := caller.Expires.Add(skew); end.Before(until) {
		until = end
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.known) >= maxTokens {
		clear(v.known)
	}
	v.known[hash] = remembered{caller, until}
	return caller, nil
}

// Reason says, in a few fixed words, why Verify has refused a token. A log may count refusals by it:
// there are few, and no caller can make up another one.
type Reason string

// The reasons.
const (
	Malformed     Reason = "it is no JWT with an accepted algorithm"
	BadSignature  Reason = "no key of the issuer has signed it"
	Expired       Reason = "it has expired"
	NotYetValid   Reason = "it is not valid yet"
	WrongIssuer   Reason = "it is of another issuer"
	WrongAudience Reason = "it is for another audience"
	BadClaims     Reason = "its claims cannot be used"
)

// refusal is an ErrInvalid with its reason.
type refusal struct {
	reason Reason
	err    error
}

func (r *refusal) Error() string   { return ErrInvalid.Error() + ": " + r.err.Error() }
func (r *refusal) Unwrap() []error { return []error{ErrInvalid, r.err} }

// ReasonOf returns the reason of an error of Verify; "" if the error is not ErrInvalid.
func ReasonOf(err error) Reason {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return ""
}

func invalid(reason Reason, format string, args ...any) error {
	return &refusal{reason, fmt.Errorf(format, args...)}
}

// refuseTimes returns the refusal of a token whose standard claims do not fit. For times it tells
// the difference of the clocks, by which an operator recognizes a clock that is wrong.
func refuseTimes(err error, claims *jwt.Claims, now time.Time) error {
	switch {
	case errors.Is(err, jwt.ErrExpired):
		return invalid(Expired, "%w: it ended %s ago by this server's clock", err, now.Sub(claims.Expiry.Time()).Round(time.Second))
	case errors.Is(err, jwt.ErrNotValidYet):
		return invalid(NotYetValid, "%w: it begins in %s by this server's clock", err, claims.NotBefore.Time().Sub(now).Round(time.Second))
	case errors.Is(err, jwt.ErrIssuedInTheFuture):
		return invalid(NotYetValid, "%w: it was issued in %s by this server's clock", err,
			claims.IssuedAt.Time().Sub(now).Round(time.Second))
	case errors.Is(err, jwt.ErrInvalidIssuer):
		return invalid(WrongIssuer, "%w", err)
	case errors.Is(err, jwt.ErrInvalidAudience):
		return invalid(WrongAudience, "%w", err)
	}
	return invalid(BadClaims, "%w", err)
}

// check verifies the signature before it reads any claim. Before that, only the key id of the token
// is used.
func (v *Verifier) check(ctx context.Context, token string, now time.Time) (*Caller, error) {
	// An algorithm that is not listed, none among them, is refused before anything else is read.
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return nil, invalid(Malformed, "%w", err)
	}
	head := parsed.Headers[0]
	keys, err := v.keys.find(ctx, head.KeyID, jose.SignatureAlgorithm(head.Algorithm))
	if err != nil {
		return nil, err
	}
	var standard jwt.Claims
	var claims map[string]json.RawMessage
	err = errors.New("no key has its name and algorithm")
	for _, k := range keys {
		if err = parsed.Claims(k.material, &standard, &claims); err == nil {
			break
		}
	}
	if err != nil {
		return nil, invalid(BadSignature, "%w", err)
	}
	if standard.Expiry == nil {
		return nil, invalid(BadClaims, "it has no exp, so it would never end")
	}
	expect := v.expect
	expect.Time = now
	if err := standard.ValidateWithLeeway(expect, skew); err != nil {
		return nil, refuseTimes(err, &standard, now)
	}
	if !visible.MatchString(standard.Subject) {
		return nil, invalid(BadClaims, "sub is missing, or has other than 1 to 255 visible characters")
	}
	caller := &Caller{Subject: standard.Subject, Expires: standard.Expiry.Time()}
	if err := v.cfg.read(claims, caller); err != nil {
		return nil, err
	}
	return caller, nil
}

// maxQueues is how many queues a token may name, as many as an API key.
const maxQueues = 100

// read takes the tenant, the scopes and the queues from the claims. It fails if the claim of the
// tenant or of the queues is there and cannot be read: that is not the same as no tenant, or as all
// queues.
func (cfg *Config) read(claims map[string]json.RawMessage, to *Caller) error {
	if raw, named := claims[cfg.QueuesClaim]; named {
		queues, err := readList(raw)
		isNone := func(q string) bool { return !names.Queue.MatchString(q) }
		if err != nil || len(queues) == 0 || len(queues) > maxQueues || slices.ContainsFunc(queues, isNone) {
			return invalid(BadClaims, "%s must name 1 to %d queues", cfg.QueuesClaim, maxQueues)
		}
		to.Queues = queues
	}
	scopes, err := readList(claims[cfg.ScopeClaim])
	if err != nil {
		return invalid(BadClaims, "%s: %w", cfg.ScopeClaim, err)
	}
	for _, scope := range Scopes {
		if slices.Contains(scopes, scope) {
			to.Scopes = append(to.Scopes, scope)
		}
	}
	raw, named := claims[cfg.TenantClaim]
	if !named {
		if !slices.Contains(to.Scopes, "admin") && !slices.Contains(to.Scopes, AllTenants) {
			return invalid(BadClaims, "it names no tenant in %s, and has neither the scope admin nor %s", cfg.TenantClaim, AllTenants)
		}
		return nil
	}
	var tenant *string
	if err := json.Unmarshal(raw, &tenant); err != nil || tenant == nil || !names.Tenant.MatchString(*tenant) {
		return invalid(BadClaims, "%s is no tenant", cfg.TenantClaim)
	}
	to.Tenant = tenant
	return nil
}

// readList reads a claim with several names: a text with spaces between them, or an array of texts.
func readList(raw json.RawMessage) (list []string, err error) {
	if raw == nil {
		return nil, nil
	}
	var text string
	if json.Unmarshal(raw, &text) == nil {
		return strings.Fields(text), nil
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, errors.New("is neither text nor an array of texts")
	}
	return list, nil
}
