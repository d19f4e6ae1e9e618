package httpapi

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/ojs-pg/ojs-pg/internal/batch"
	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// keyring caches the principals of API keys for keyMemory. A busy client costs one query in that
// time, and a revoked key is refused after that time at the latest.
//
// Lookups that come while a statement is under way share the next statement. So a client that makes
// up keys has the server send one statement at a time, however many keys it sends. Keys that were
// valid at their last lookup wait in a queue of their own, which takes turns with the queue of
// unknown keys. Unknown keys have a cache of their own, so that they do not push valid keys out.
type keyring struct {
	// owners looks keys up in the database, up to keyBatch of them in one statement.
	owners *batch.Batcher[keyHash, *principal]

	// asking joins the lookups of one key that come at the same time.
	asking singleflight.Group
	// mu protects valid and others. Neither cache has more than maxKeys: a full one is emptied.
	mu sync.Mutex
	// valid has the keys that had an owner at their last lookup, and others the keys that had none.
	valid  map[keyHash]knownKey
	others map[keyHash]knownKey
}

// keyHash is the SHA-256 of an API key. The keyring never keeps the key itself.
type keyHash = [sha256.Size]byte

// knownKey is the result of a lookup, which holds until a time.
type knownKey struct {
	owner *principal // nil: the key is not valid
	until time.Time
}

const (
	keyMemory = time.Second
	// outageMemory is how long a key that was valid may still read metrics while keys cannot be
	// looked up. It is longer than an outage, because alerts need metrics until the end of it.
	outageMemory = 24 * time.Hour
	// outagePatience is how long such a key waits for a lookup. Prometheus gives a scrape up after
	// 10 s, and reading the queues takes up to 5 s of that.
	outagePatience = 2 * time.Second

	maxKeys  = 10_000 // in each of the two caches
	keyBatch = 100    // keys in one statement
)

// keyForm reports whether a secret has the form of the keys that ojs.create_api_key makes. It runs
// for every request, so it uses no regular expression.
func keyForm(secret string) bool {
	digits, ok := strings.CutPrefix(secret, "ojs_")
	if !ok || len(digits) != 64 {
		return false
	}
	for i := range len(digits) {
		if c := digits[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// newKeyring makes a keyring. find returns the owner of each hash, in the order of the hashes, and
// nil for a hash that no valid key has.
func newKeyring(timeout time.Duration, find func(context.Context, []keyHash) ([]*principal, error)) *keyring {
	options := batch.Options{Items: keyBatch, Bytes: keyBatch, Statements: 1, Timeout: timeout}
	return &keyring{owners: batch.New(options, find), valid: map[keyHash]knownKey{}, others: map[keyHash]knownKey{}}
}

// owner returns the principal that an API key belongs to, or nil if the key is not valid. It fails
// if the lookup fails. The database gets only the hash of the secret.
func (k *keyring) owner(ctx context.Context, secret string) (*principal, error) {
	if !keyForm(secret) {
		return nil, nil //nolint:nilnil // the credential is not valid
	}
	hash, now := sha256.Sum256([]byte(secret)), time.Now()
	known, before := k.recall(hash)
	if now.Before(known.until) {
		return known.owner, nil
	}
	found, err, _ := k.asking.Do(string(hash[:]), func() (any, error) {
		line := "new"
		if before {
			line = "valid"
		}
		// Other requests may share this lookup, so it does not end with the request that began it.
		owners, errs := k.owners.Do(context.WithoutCancel(ctx), line, []keyHash{hash}, func(*keyHash) int { return 1 })
		if errs[0] == nil {
			k.remember(hash, knownKey{owners[0], now.Add(keyMemory)})
		}
		return owners[0], errs[0]
	})
	if err != nil {
		return nil, err
	}
	return found.(*principal), nil
}

// ownerInOutage returns what owner returns. If the lookup fails, or takes longer than
// outagePatience, it returns the owner that the key had at its last lookup, for outageMemory. It is
// for metrics alone: a key that was revoked just before an outage would be valid until its end.
func (k *keyring) ownerInOutage(ctx context.Context, secret string) (*principal, error) {
	hash := sha256.Sum256([]byte(secret))
	known, valid := k.recall(hash)
	if !valid || time.Now().After(known.until.Add(outageMemory)) {
		return k.owner(ctx, secret)
	}
	type answer struct {
		owner *principal
		err   error
	}
	answered := make(chan answer, 1)
	go func() {
		owner, err := k.owner(ctx, secret)
		answered <- answer{owner, err}
	}()
	select {
	case a := <-answered:
		if a.err == nil {
			return a.owner, nil
		}
	case <-time.After(outagePatience):
	}
	return known.owner, nil
}

// recall returns the last result for a key, which may no longer hold, and whether the key was valid
// then.
func (k *keyring) recall(hash keyHash) (known knownKey, valid bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, valid = k.valid[hash]; !valid {
		known = k.others[hash]
	}
	return known, valid
}

// remember stores the result of a lookup in the cache that it belongs to, and removes the key from
// the other one.
func (k *keyring) remember(hash keyHash, key knownKey) {
	k.mu.Lock()
	defer k.mu.Unlock()
	to, other := k.valid, k.others
	if key.owner == nil {
		to, other = other, to
	}
	delete(other, hash)
	if len(to) >= maxKeys {
		clear(to)
	}
	to[hash] = key
}

// findKeys reads the owners of keys from the database. The callers are not known yet, so the
// statement counts as pg.Stranger's, which has one connection.
func (s *Server) findKeys(ctx context.Context, hashes []keyHash) ([]*principal, error) {
	asked := make([][]byte, len(hashes))
	for i := range hashes {
		asked[i] = hashes[i][:]
	}
	rows, err := s.q.KeyOwners(pg.As(ctx, pg.Stranger, true), asked)
	if err != nil {
		return nil, err
	}
	owners := make([]*principal, len(hashes))
	for _, r := range rows {
		owners[r.N-1] = &principal{Name: "key:" + r.Prefix, Tenant: r.TenantID, Scopes: r.Scopes, Queues: r.Queues}
	}
	return owners, nil
}
