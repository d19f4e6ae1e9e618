package httpapi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// forget empties the cache, so that the next request with each key asks the database.
func (k *keyring) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	clear(k.valid)
	clear(k.others)
}

var goodKey = "ojs_" + strings.Repeat("0", 64)

// keysOf returns a keyring that knows one key, goodKey. It calls ask for every statement.
func keysOf(ask func([]keyHash)) *keyring {
	good, tenant := sha256.Sum256([]byte(goodKey)), "acme"
	return newKeyring(time.Minute, func(_ context.Context, hashes []keyHash) ([]*principal, error) {
		ask(hashes)
		owners := make([]*principal, len(hashes))
		for i, hash := range hashes {
			if hash == good {
				owners[i] = &principal{Name: "key:ojs_0", Tenant: &tenant, Scopes: []string{"produce"}}
			}
		}
		return owners, nil
	})
}

// A busy client costs a statement a second, and what is forgotten is asked anew.
func TestKeysAreRememberedForASecond(t *testing.T) {
	t.Parallel()
	asked := 0
	ring := keysOf(func([]keyHash) { asked++ })
	for range 1000 {
		if who, err := ring.owner(t.Context(), goodKey); err != nil || who.Name != "key:ojs_0" {
			t.Fatal(who, err)
		}
	}
	if asked > 5 {
		t.Errorf("asked %d times", asked)
	}
	before := asked
	ring.expire()
	if _, err := ring.owner(t.Context(), goodKey); err != nil || asked != before+1 {
		t.Errorf("asked %d times after a second, %v", asked-before, err)
	}
	for _, form := range []string{
		"", "ojs_0", strings.Repeat("x", 68), goodKey + "0", strings.Replace(goodKey, "0", "A", 1), strings.Replace(goodKey, "0", "g", 1),
	} {
		if who, err := ring.owner(t.Context(), form); who != nil || err != nil || asked != before+1 {
			t.Errorf("%q was asked for", form)
		}
	}
}

// expire ends what the keyring remembers, so that the next request with each key asks the database.
func (k *keyring) expire() {
	k.mu.Lock()
	defer k.mu.Unlock()
	for hash, key := range k.valid {
		key.until = time.Now()
		k.valid[hash] = key
	}
}

// While keys cannot be looked up, a key that was valid lately reads metrics, and nothing else.
func TestMetricsAreReadDuringAnOutage(t *testing.T) {
	t.Parallel()
	a := guarded(t)
	operator, late, tenant := a.key("", "{admin}"), a.key("", "{admin}"), a.key("acme", "{read}")
	a.do("GET", "/metrics", "", operator).want(200)
	a.do("GET", "/metrics", "", tenant).want(403)
	pgtest.Exec(t, a.pool, "alter function ojs._key_owner(bytea) rename to _key_owner_away")
	a.srv.keys.expire()
	a.do("GET", "/metrics", "", operator).want(200)
	a.do("GET", "/metrics", "", tenant).want(403)
	for path, key := range map[string]string{"/metrics": late, v1 + "/admin/queues": operator} {
		if r := a.do("GET", path, "", key); r.status < 500 {
			t.Errorf("%s during the outage: %d", path, r.status)
		}
	}
	pgtest.Exec(t, a.pool, "alter function ojs._key_owner_away(bytea) rename to _key_owner")
	pgtest.Exec(t, a.pool, "update ojs.api_key set revoked_at = ojs.now() where tenant_id is null")
	a.do("GET", "/metrics", "", operator).want(401)
	pgtest.Exec(t, a.pool, "alter function ojs._key_owner(bytea) rename to _key_owner_away")
	if r := a.do("GET", "/metrics", "", operator); r.status == 200 {
		t.Error("a key that was refused reads metrics during an outage")
	}
}

// A lookup that hangs does not hold a scrape up for longer than Prometheus waits.
func TestMetricsDoNotWaitForALookupThatHangs(t *testing.T) {
	t.Parallel()
	hang := make(chan struct{})
	defer close(hang)
	asked := 0
	ring := keysOf(func([]keyHash) {
		if asked++; asked > 1 {
			<-hang
		}
	})
	if _, err := ring.owner(t.Context(), goodKey); err != nil {
		t.Fatal(err)
	}
	ring.expire()
	began := time.Now()
	who, err := ring.ownerInOutage(t.Context(), goodKey)
	if took := time.Since(began); err != nil || who == nil || took > outagePatience+time.Second {
		t.Errorf("%v, %v after %v", who, err, took)
	}
}

// Made-up keys cost one statement at a time, evict no valid key from the cache, and do not make a valid key wait.
func TestMadeUpKeysAreBounded(t *testing.T) {
	t.Parallel()
	const madeUp = 2000
	began, goOn := make(chan struct{}, 1), make(chan struct{})
	var (
		mu         sync.Mutex
		statements [][]keyHash
		hold       bool
		under      int
	)
	ring := keysOf(func(hashes []keyHash) {
		mu.Lock()
		statements = append(statements, hashes)
		held := hold
		if under++; under > 1 {
			t.Error("two statements are under way at once")
		}
		mu.Unlock()
		if held {
			select {
			case began <- struct{}{}:
			default:
			}
			<-goOn
		}
		mu.Lock()
		under--
		mu.Unlock()
	})
	if who, err := ring.owner(t.Context(), goodKey); who == nil || err != nil {
		t.Fatal(who, err)
	}
	good := sha256.Sum256([]byte(goodKey))
	stale := ring.valid[good]
	stale.until = time.Now()
	ring.valid[good] = stale

	mu.Lock()
	statements, hold = nil, true
	mu.Unlock()
	var asking sync.WaitGroup
	for n := range madeUp {
		asking.Go(func() {
			if who, err := ring.owner(t.Context(), fmt.Sprintf("ojs_%064x", n+1)); who != nil || err != nil {
				t.Errorf("a key that is made up is %v's, %v", who, err)
			}
		})
	}
	<-began
	asking.Go(func() {
		if who, err := ring.owner(t.Context(), goodKey); who == nil || err != nil {
			t.Errorf("the good key is %v's, %v", who, err)
		}
	})
	pgtest.Eventually(t, "all wait but those of the first statement", func() bool {
		return ring.owners.Waiting() == 1+madeUp-len(statements[0])
	})
	close(goOn)
	asking.Wait()
	if len(statements) > 10+madeUp/keyBatch {
		t.Errorf("%d keys cost %d statements", madeUp, len(statements))
	}
	if !slices.Contains(statements[1], good) {
		t.Error("the good key waited behind those that were made up")
	}
	for n := range maxKeys + 10 - madeUp {
		ring.remember(sha256.Sum256(fmt.Append(nil, n)), knownKey{})
	}
	if _, kept := ring.recall(good); !kept || len(ring.others) > maxKeys {
		t.Errorf("of the good keys %d are kept, of others %d", len(ring.valid), len(ring.others))
	}
}

// What asking for a key costs a request.
func BenchmarkKeyring(b *testing.B) {
	ring := keysOf(func([]keyHash) {})
	for b.Loop() {
		if _, err := ring.owner(b.Context(), goodKey); err != nil {
			b.Fatal(err)
		}
	}
}
