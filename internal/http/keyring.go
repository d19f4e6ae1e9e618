package httpapi

import (
	"context"
	"crypto/sha256"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/ojs-pg/ojs-pg/internal/pg"
)

// keyring caches the owners of API keys for one second. So a busy key costs one query per second,
// and a revoked key stops working within one. Lookups that arrive while a query runs share the next
// query. Unknown keys have a cache of their own, so that guesses cannot evict valid keys.
type keyring struct {
	owners *pg.Batcher[keyHash, *principal]

	asking singleflight.Group
	mu     sync.Mutex
	valid  map[keyHash]knownKey
	others map[keyHash]knownKey
}

type keyHash = [sha256.Size]byte

type knownKey struct {
	owner *principal // nil: the key is not valid
	until time.Time
}

const (
	keyMemory = time.Second
	maxKeys   = 10_000 // of either kind in memory
	keyBatch  = 100    // in one statement
)

// keyForm reports whether a secret has the form of a key of ojs.create_api_key. It runs on every
// request, so it does without a regular expression.
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

// newKeyring makes a keyring. find returns the owner of each hash, in their order, nil where there
// is none.
func newKeyring(timeout time.Duration, find func(context.Context, []keyHash) ([]*principal, error)) *keyring {
	options := pg.BatchOptions{Items: keyBatch, Bytes: keyBatch, Statements: 1, Timeout: timeout}
	return &keyring{owners: pg.NewBatcher(options, find), valid: map[keyHash]knownKey{}, others: map[keyHash]knownKey{}}
}

// owner returns the owner of a secret, or nil. Only the hash of the secret is kept and sent to the
// database.
func (k *keyring) owner(ctx context.Context, secret string) (*principal, error) {
	if !keyForm(secret) {
		return nil, nil //nolint:nilnil // nobody's
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
		// Others may share the question, so that it does not end with the request that asked it.
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

// recall returns what is known of a key, which may be outdated, and whether the key was valid when
// it was looked up last.
func (k *keyring) recall(hash keyHash) (known knownKey, valid bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, valid = k.valid[hash]; !valid {
		known = k.others[hash]
	}
	return known, valid
}

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

// findKeys asks the database for the owners of keys.
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
