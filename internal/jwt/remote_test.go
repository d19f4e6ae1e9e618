package jwt

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// issuer shows a key set, and counts who reads it.
type issuer struct {
	*httptest.Server

	mu     sync.Mutex
	body   string
	status int
	reads  int
	hold   chan struct{} // if there is one, an answer sends to it, and waits until it can send again
}

func newIssuer(t *testing.T, keys ...jose.JSONWebKey) *issuer {
	i := &issuer{status: http.StatusOK}
	i.show(t, keys...)
	i.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		i.mu.Lock()
		i.reads++
		body, status, hold := i.body, i.status, i.hold
		i.mu.Unlock()
		if hold != nil {
			hold <- struct{}{}
			hold <- struct{}{}
		}
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://issuer.test/keys", http.StatusFound)
			return
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(i.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return i
}

func (i *issuer) set(f func()) {
	i.mu.Lock()
	defer i.mu.Unlock()
	f()
}

func (i *issuer) show(t *testing.T, keys ...jose.JSONWebKey) {
	t.Helper()
	body, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	i.set(func() { i.body = string(body) })
}

func (i *issuer) count() (n int) {
	i.set(func() { n = i.reads })
	return n
}

func public(kid string, k any) jose.JSONWebKey {
	return jose.JSONWebKey{Key: k, KeyID: kid, Use: "sig"}
}

// clock is a time that tests move.
type clock struct {
	mu sync.Mutex
	at time.Time
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) move(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

func (i *issuer) verifier(t *testing.T, path string) (*Verifier, *clock) {
	t.Helper()
	v, err := New(Config{KeysURL: i.URL + path, Issuer: "https://issuer.test", Audience: "ojs"})
	if err != nil {
		t.Fatal(err)
	}
	c := &clock{at: theBeginning}
	v.now, v.keys.(*remote).now = c.now, c.now
	t.Cleanup(v.keys.(*remote).client.CloseIdleConnections)
	return v, c
}

// long is a token that outlives the clock's moves. Each has another sub, so that none is remembered.
func long(t *testing.T, alg jose.SignatureAlgorithm, k any, kid, sub string) string {
	return sign(t, alg, k, kid, claims(map[string]any{"sub": sub, "exp": theBeginning.Add(100 * time.Hour).Unix()}))
}

func (v *Verifier) want(t *testing.T, what, token string, want error) {
	t.Helper()
	if _, err := v.Verify(t.Context(), token); !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func TestKeysOfAURL(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, public("one", rsaKey.Public()), public("two", ecKey.Public()))
	v, now := i.verifier(t, "/keys")
	if err := v.Prime(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.want(t, "the first key", long(t, jose.RS256, rsaKey, "one", "a"), nil)
	v.want(t, "the second key", long(t, jose.ES256, ecKey, "two", "a"), nil)
	v.want(t, "a token that names no key", long(t, jose.ES256, ecKey, "", "a"), nil)
	v.want(t, "a key under another one's name", long(t, jose.ES256, ecKey, "one", "b"), ErrInvalid)
	if n := i.count(); n != 1 {
		t.Errorf("the set was read %d times for tokens of its keys", n)
	}

	// Names that a client makes up do not become requests.
	for n := range 100 {
		v.want(t, "an unknown key", long(t, jose.RS256, otherRSA, fmt.Sprint("made-up-", n), "c"), ErrInvalid)
	}
	if n := i.count(); n != 1 {
		t.Errorf("the set was read %d times for tokens of unknown keys", n)
	}

	// The issuer begins to use another key.
	i.show(t, public("two", ecKey.Public()), public("three", edKey.Public()))
	now.move(readPause)
	v.want(t, "a key that is new", long(t, jose.EdDSA, edKey, "three", "d"), nil)
	v.want(t, "a key that was withdrawn", long(t, jose.RS256, rsaKey, "one", "d"), ErrInvalid)
}

func TestAKeySetThatCannotBeRead(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, public("one", ecKey.Public()))
	i.set(func() { i.status = http.StatusInternalServerError })
	v, now := i.verifier(t, "/keys")
	if err := v.Prime(t.Context()); !errors.Is(err, ErrAway) {
		t.Errorf("a set that is not there is read with %v", err)
	}
	v.want(t, "before the set has been read", long(t, jose.ES256, ecKey, "one", "a"), ErrAway)
	if n := i.count(); n != 1 {
		t.Errorf("the set was asked for %d times in one moment", n)
	}
	i.set(func() { i.status = http.StatusOK })
	now.move(readPause)
	v.want(t, "once it can be read", long(t, jose.ES256, ecKey, "one", "a"), nil)

	i.set(func() { i.status = http.StatusInternalServerError })
	now.move(fresh)
	v.want(t, "an old set that cannot be read again", long(t, jose.ES256, ecKey, "one", "b"), nil)
	v.want(t, "an unknown key then", long(t, jose.RS256, rsaKey, "two", "b"), ErrAway)
	now.move(lasting - fresh)
	v.want(t, "a set that is too old", long(t, jose.ES256, ecKey, "one", "c"), ErrAway)
	i.set(func() { i.status = http.StatusOK })
	now.move(readPause)
	v.want(t, "once it can be read again", long(t, jose.ES256, ecKey, "one", "c"), nil)
}

// A key that the issuer withdraws is refused from the next look at the set on, and requests do not wait for that look one after another.
func TestAnOldKeySetIsReadByOneRequest(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, public("one", ecKey.Public()))
	v, now := i.verifier(t, "/keys")
	v.want(t, "the key", long(t, jose.ES256, ecKey, "one", "a"), nil)
	i.show(t, public("two", rsaKey.Public()))
	hold := make(chan struct{})
	i.set(func() { i.hold = hold })
	now.move(fresh)
	first := make(chan error)
	go func() {
		_, err := v.Verify(t.Context(), long(t, jose.ES256, ecKey, "one", "first"))
		first <- err
	}()
	<-hold // the first one reads
	v.want(t, "a request beside the one that reads", long(t, jose.ES256, ecKey, "one", "second"), nil)
	i.set(func() { i.hold = nil })
	<-hold
	if err := <-first; !errors.Is(err, ErrInvalid) {
		t.Errorf("the token of a key that was withdrawn: %v", err)
	}
	v.want(t, "afterwards", long(t, jose.ES256, ecKey, "one", "third"), ErrInvalid)
}

func TestManyAtOnceReadAKeySetOnce(t *testing.T) {
	t.Parallel()
	i := newIssuer(t, public("one", ecKey.Public()))
	v, _ := i.verifier(t, "/keys")
	var all sync.WaitGroup
	for n := range 50 {
		token := long(t, jose.ES256, ecKey, "one", fmt.Sprint(n))
		all.Go(func() {
			if _, err := v.Verify(t.Context(), token); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if n := i.count(); n != 1 {
		t.Errorf("50 requests read the set %d times", n)
	}
}

func TestWhatAKeySetMayHold(t *testing.T) {
	t.Parallel()
	// What a URL shows is no secret, and a key is for what it says it is for.
	i := newIssuer(t, public("good", ecKey.Public()), public("secret", []byte(secret)), public("private", rsaKey),
		public("short", shortRSA.Public()), public("curve", wrongCurve.Public()),
		jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "encryption", Use: "enc"},
		jose.JSONWebKey{Key: rsaKey.Public(), KeyID: "other", Use: "sig", Algorithm: "PS256"})
	i.set(func() { i.body = strings.Replace(i.body, `{"keys":[`, `{"keys":[{"kty":"strange"},{},7,`, 1) })
	v, _ := i.verifier(t, "/keys")
	v.want(t, "a good key", long(t, jose.ES256, ecKey, "good", "a"), nil)
	if keys := v.keys.(*remote).set.Load().keys; len(keys) != 1 || keys[0].name != "good" || keys[0].alg != jose.ES256 {
		t.Errorf("of the set are taken %+v", keys)
	}
	if keys, err := v.keys.find(t.Context(), "good", jose.HS256); err != nil || len(keys) > 0 {
		t.Errorf("%d keys of the set are tried as a secret: %v", len(keys), err)
	}
	for kid, token := range map[string]string{
		"secret": long(t, jose.HS256, []byte(secret), "secret", "a"), "private": long(t, jose.RS256, rsaKey, "private", "a"),
		"short": long(t, jose.RS256, shortRSA, "short", "a"), "curve": long(t, jose.ES384, wrongCurve, "curve", "a"),
		"encryption": long(t, jose.RS256, rsaKey, "encryption", "a"), "other": long(t, jose.PS256, rsaKey, "other", "a"),
		"other as RS256":   long(t, jose.RS256, rsaKey, "other", "a"),
		"good as a secret": long(t, jose.HS256, pemOf(t, ecKey.Public()), "good", "a"),
	} {
		v.want(t, kid, token, ErrInvalid)
	}
	for name, body := range map[string]string{
		"no JSON": "<html>", "no keys": `{"keys":[]}`, "another object": `{}`, "only a secret": `{"keys":[{"kty":"oct","k":"AAAA"}]}`,
		"more than it may": `{"keys":[]` + strings.Repeat(" ", maxSetSize) + `}`,
	} {
		i.set(func() { i.body = body })
		v, _ := i.verifier(t, "/keys")
		v.want(t, name, long(t, jose.ES256, ecKey, "good", name), ErrAway)
	}
	v, _ = i.verifier(t, "/away")
	v.want(t, "a redirect to where anybody can answer", long(t, jose.ES256, ecKey, "good", "b"), ErrAway)
}
