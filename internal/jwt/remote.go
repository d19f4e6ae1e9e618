package jwt

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const (
	fresh      = 5 * time.Minute  // for which a key set is not read again
	lasting    = time.Hour        // for which it holds while it cannot be read
	readPause  = 10 * time.Second // between two reads, whatever tokens name
	readTime   = 5 * time.Second
	maxSetSize = 1 << 20 // bytes
	maxKeys    = 50
)

// remote holds the keys of a URL. They are read again when they are old, by the request that
// notices, and when a token names a key that is not among them: the issuer may just have begun to
// use it.
type remote struct {
	url    string
	client *http.Client
	now    func() time.Time

	set atomic.Pointer[keySet] // nil before it has been read

	reading sync.Mutex // held by who reads
	tried   time.Time  // of the last read
	failed  error      // of that one
}

type keySet struct {
	keys []key
	at   time.Time
}

func newRemote(address string) (*remote, error) {
	if err := trustworthy(address); err != nil {
		return nil, fmt.Errorf("the URL of the key set: %w", err)
	}
	return &remote{url: address, now: time.Now, client: &http.Client{
		Timeout: readTime,
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			if len(via) > 3 {
				return errors.New("more than three redirects")
			}
			return trustworthy(r.URL.String())
		},
	}}, nil
}

// trustworthy refuses an address without https: an attacker who can change the answer can sign
// tokens. Addresses of this machine are accepted, because no attacker is on the way.
func trustworthy(address string) error {
	u, err := url.Parse(address)
	if err != nil {
		return err
	}
	host := u.Hostname()
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	if host == "" || u.Scheme != "https" && (u.Scheme != "http" || !local) {
		return fmt.Errorf("%q must be https, or http on this machine", address)
	}
	return nil
}

// choose returns the keys with the token's key id and algorithm. For a token without a key id it
// returns all keys of the algorithm.
func (s *keySet) choose(kid string, alg jose.SignatureAlgorithm) (some []key) {
	for _, k := range s.keys {
		if k.alg == alg && (kid == "" || kid == k.name) {
			some = append(some, k)
		}
	}
	return some
}

func (r *remote) find(ctx context.Context, kid string, alg jose.SignatureAlgorithm) ([]key, error) {
	set, now := r.set.Load(), r.now()
	if set != nil {
		age := now.Sub(set.at)
		if some := set.choose(kid, alg); len(some) > 0 && age < lasting {
			// One request reads; the others go on with what is known.
			if age >= fresh && r.reading.TryLock() {
				_ = r.readAgain(ctx)
				r.reading.Unlock()
				return r.set.Load().choose(kid, alg), nil
			}
			return some, nil
		}
	}
	r.reading.Lock()
	defer r.reading.Unlock()
	// Another request may have read it meanwhile.
	if latest := r.set.Load(); latest == set {
		if err := r.readAgain(ctx); err != nil {
			return nil, err
		}
	}
	return r.set.Load().choose(kid, alg), nil
}

// read reads the key set for the first time.
func (r *remote) read(ctx context.Context) error {
	r.reading.Lock()
	defer r.reading.Unlock()
	return r.readAgain(ctx)
}

// readAgain reads the key set, unless that was tried a moment ago: then it returns the same
// outcome, so that key ids that clients make up do not become requests to the issuer. A client that
// hangs up does not end it for the others.
func (r *remote) readAgain(ctx context.Context) error {
	if r.now().Sub(r.tried) < readPause {
		return r.failed
	}
	r.tried = r.now()
	keys, err := r.download(context.WithoutCancel(ctx))
	if err != nil {
		r.failed = fmt.Errorf("%w: %w", ErrAway, err)
		return r.failed
	}
	r.failed = nil
	r.set.Store(&keySet{keys, r.now()})
	return nil
}

func (r *remote) download(ctx context.Context) ([]key, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, r.url, nil)
	if err != nil {
		return nil, err
	}
	response, err := r.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answers %s", r.url, response.Status)
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, maxSetSize+1))
	if err != nil {
		return nil, err
	}
	if len(body) > maxSetSize {
		return nil, fmt.Errorf("%s has more than %d bytes", r.url, maxSetSize)
	}
	return parseSet(body)
}

// parseSet reads the public keys for signatures. It skips keys for other uses, and secrets: a key
// that a URL shows is no secret.
func parseSet(body []byte) (keys []key, err error) {
	var set struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.Unmarshal(body, &set); err != nil {
		return nil, fmt.Errorf("no key set: %w", err)
	}
	for _, raw := range set.Keys {
		var k jose.JSONWebKey
		if k.UnmarshalJSON(raw) != nil || !k.Valid() || k.Use != "" && k.Use != "sig" {
			continue
		}
		alg, err := algorithmOf(k.Key)
		if err != nil || k.Algorithm != "" && k.Algorithm != string(alg) {
			continue
		}
		if keys = append(keys, key{name: k.KeyID, alg: alg, material: k.Key}); len(keys) > maxKeys {
			return nil, fmt.Errorf("more than %d keys", maxKeys)
		}
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no public key for RS256, ES256 or EdDSA in the key set")
	}
	return keys, nil
}
