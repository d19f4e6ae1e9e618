package jwt

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
)

const secret = "0123456789abcdef0123456789abcdef"

var (
	rsaKey, _    = rsa.GenerateKey(rand.Reader, 2048)
	otherRSA, _  = rsa.GenerateKey(rand.Reader, 2048)
	ecKey, _     = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, _  = ed25519.GenerateKey(rand.Reader)
	shortRSA     = weak(rsa.GenerateKey(rand.Reader, 1024))
	wrongCurve   = weak(ecdsa.GenerateKey(elliptic.P384(), rand.Reader))
	theBeginning = time.Date(2031, 1, 1, 0, 0, 0, 0, time.UTC)
)

func weak[K any](k K, _ error) K { return k }

// claims are those of a valid token of tenant acme, with changes; null in one removes a claim, and raw JSON stands for itself.
func claims(changes map[string]any) map[string]any {
	all := map[string]any{
		"iss": "https://issuer.test", "aud": "ojs", "sub": "ada", "tenant_id": "acme", "scope": "produce read openid",
		"iat": theBeginning.Unix(), "exp": theBeginning.Add(time.Hour).Unix(),
	}
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func sign(t testing.TB, alg jose.SignatureAlgorithm, k any, kid string, payload any) string {
	t.Helper()
	options := &jose.SignerOptions{}
	if kid != "" {
		options = options.WithHeader("kid", kid)
	}
	return signWith(t, jose.SigningKey{Algorithm: alg, Key: k}, options, payload)
}

func signWith(t testing.TB, key jose.SigningKey, options *jose.SignerOptions, payload any) string {
	t.Helper()
	signer, err := jose.NewSigner(key, options)
	if err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(payload)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(body)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// forge is a token by hand, for what no library would make.
func forge(head, body, signature string) string {
	encode := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return encode(head) + "." + encode(body) + "." + encode(signature)
}

func pemOf(t testing.TB, public any) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(public)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func verifier(t testing.TB, keys []byte, adjust ...func(*Config)) *Verifier {
	t.Helper()
	name := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(name, keys, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{KeyFile: name, Issuer: "https://issuer.test", Audience: "ojs"}
	for _, f := range adjust {
		f(&cfg)
	}
	v, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	v.now = func() time.Time { return theBeginning }
	return v
}

func allKeys(t testing.TB) []byte {
	return slices.Concat(pemOf(t, rsaKey.Public()), pemOf(t, ecKey.Public()), pemOf(t, edKey.Public()))
}

func TestEveryAlgorithm(t *testing.T) {
	t.Parallel()
	for alg, c := range map[jose.SignatureAlgorithm]struct {
		key  any
		file []byte
	}{
		jose.HS256: {[]byte(secret), []byte(secret + "\n")},
		jose.RS256: {rsaKey, allKeys(t)},
		jose.ES256: {ecKey, allKeys(t)},
		jose.EdDSA: {edKey, allKeys(t)},
	} {
		caller, err := verifier(t, c.file).Verify(t.Context(), sign(t, alg, c.key, "", claims(nil)))
		if err != nil {
			t.Errorf("%s: %v", alg, err)
			continue
		}
		if caller.Tenant == nil || *caller.Tenant != "acme" || caller.Subject != "ada" ||
			!slices.Equal(caller.Scopes, []string{"produce", "read"}) {
			t.Errorf("%s: it is of %+v", alg, caller)
		}
	}
}

func TestClaimsThatAreRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change map[string]any
		tenant string // empty: none
		scopes string
	}{
		"scopes may be an array":           {map[string]any{"scope": []string{"work", "other"}}, "acme", "work"},
		"no scope allows nothing":          {map[string]any{"scope": nil}, "acme", ""},
		"a scope is a whole word":          {map[string]any{"scope": "administrator reading"}, "acme", ""},
		"an operator has no tenant":        {map[string]any{"tenant_id": nil, "scope": "admin"}, "", "admin"},
		"a tenant's administrator has one": {map[string]any{"scope": "admin"}, "acme", "admin"},
		"one audience of several is ours":  {map[string]any{"aud": []string{"mail", "ojs"}}, "acme", "produce read"},
		"it may be for some queues":        {map[string]any{"queues": []string{"mail", "reports"}}, "acme", "produce read of mail reports"},
		"queues may be a text":             {map[string]any{"queues": "mail"}, "acme", "produce read of mail"},
		"a clock may be late":              {map[string]any{"exp": theBeginning.Add(-5 * time.Second).Unix()}, "acme", "produce read"},
		"a clock may be early":             {map[string]any{"nbf": theBeginning.Add(5 * time.Second).Unix()}, "acme", "produce read"},
	} {
		caller, err := verifier(t, []byte(secret)).Verify(t.Context(), sign(t, jose.HS256, []byte(secret), "", claims(c.change)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		tenant := ""
		if caller.Tenant != nil {
			tenant = *caller.Tenant
		}
		scopes := strings.Join(caller.Scopes, " ")
		if caller.Queues != nil {
			scopes += " of " + strings.Join(caller.Queues, " ")
		}
		if tenant != c.tenant || scopes != c.scopes {
			t.Errorf("%s: it is of tenant %q with %q", name, tenant, scopes)
		}
	}
	v := verifier(t, []byte(secret), func(c *Config) { c.TenantClaim, c.ScopeClaim = "org", "permissions" })
	caller, err := v.Verify(t.Context(), sign(t, jose.HS256, []byte(secret), "", claims(map[string]any{
		"org": "globex", "permissions": []string{"read"}, "scope": "admin",
	})))
	if err != nil || *caller.Tenant != "globex" || !slices.Equal(caller.Scopes, []string{"read"}) {
		t.Errorf("with other names of claims it is of %+v: %v", caller, err)
	}
}

func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	ours := verifier(t, []byte(secret))
	change := func(name string, value any) string {
		return sign(t, jose.HS256, []byte(secret), "", claims(map[string]any{name: value}))
	}
	for name, token := range map[string]string{
		"nothing":                              "",
		"no token":                             "acme",
		"two parts":                            "e30.e30",
		"another secret":                       sign(t, jose.HS256, []byte(strings.ToUpper(secret)), "", claims(nil)),
		"a longer variant of the algorithm":    sign(t, jose.HS512, []byte(secret+secret), "", claims(nil)),
		"another issuer":                       change("iss", "https://elsewhere.test"),
		"no issuer":                            change("iss", nil),
		"another audience":                     change("aud", "mail"),
		"an audience that ours is a part of":   change("aud", "ojs2"),
		"no audience":                          change("aud", nil),
		"an end that has come":                 change("exp", theBeginning.Add(-11*time.Second).Unix()),
		"no end":                               change("exp", nil),
		"an end that is null":                  change("exp", json.RawMessage("null")),
		"an end that is text":                  change("exp", "never"),
		"an end beyond all numbers":            change("exp", json.RawMessage("1e400")),
		"a beginning to come":                  change("nbf", theBeginning.Add(time.Minute).Unix()),
		"a beginning beyond all times":         change("nbf", json.RawMessage("9e18")),
		"made in the future":                   change("iat", theBeginning.Add(time.Minute).Unix()),
		"no tenant and no operator":            change("tenant_id", nil),
		"a tenant that is null":                change("tenant_id", json.RawMessage("null")),
		"a tenant that is empty":               change("tenant_id", ""),
		"a tenant that is a number":            change("tenant_id", 7),
		"several tenants":                      change("tenant_id", []string{"acme"}),
		"a tenant that breaks the pattern":     change("tenant_id", "acme corp"),
		"a tenant with a line's end":           change("tenant_id", "acme\n"),
		"a tenant that is too long":            change("tenant_id", strings.Repeat("a", 257)),
		"scopes that are a number":             change("scope", 1),
		"scopes that are not all texts":        change("scope", []any{"read", 1}),
		"queues that are a number":             change("queues", 1),
		"queues that are null":                 change("queues", json.RawMessage("null")),
		"no queue":                             change("queues", []string{}),
		"a queue that cannot be":               change("queues", []string{"mail", "*"}),
		"too many queues":                      change("queues", strings.Repeat("mail ", 101)),
		"no subject":                           change("sub", nil),
		"a subject that is two lines of a log": change("sub", "ada\nlevel=INFO"),
		"a subject with a NUL":                 change("sub", "ada\x00"),
		"a subject that is too long":           change("sub", strings.Repeat("a", 256)),
		"claims that are no object":            sign(t, jose.HS256, []byte(secret), "", []int{1}),
		"an operator's token with a null tenant": sign(t, jose.HS256, []byte(secret), "",
			claims(map[string]any{"tenant_id": json.RawMessage("null"), "scope": "admin"})),
		"the algorithm none":                 forge(`{"alg":"none"}`, `{"tenant_id":"acme"}`, ""),
		"the algorithm None":                 forge(`{"alg":"None"}`, `{"tenant_id":"acme"}`, ""),
		"no algorithm":                       forge(`{}`, `{"tenant_id":"acme"}`, "x"),
		"a condition that nobody here knows": critical(t),
		"two tenants under one name":         twice(t),
		"a signature of another token's": change("sub", "eve")[:len(change("sub", "eve"))-43] +
			change("sub", "ada")[len(change("sub", "ada"))-43:],
		"a valid token and something behind it":   change("sub", "ada") + ".x",
		"a valid token without its last signs":    strings.TrimRight(change("sub", "ada"), "=")[:len(change("sub", "ada"))-2],
		"a key that the token brings along":       embedded(t),
		"a valid token in JSON instead of a line": asJSON(t),
	} {
		if caller, err := ours.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: it is of %+v, %v", name, caller, err)
		}
	}
	if caller, err := ours.Verify(t.Context(), change("sub", "ada")); err != nil {
		t.Errorf("the token that all these are made from is refused: %+v, %v", caller, err)
	}
}

// critical has a header that says that it must be understood.
func critical(t *testing.T) string {
	t.Helper()
	options := (&jose.SignerOptions{}).WithHeader("crit", []string{"only-on-mondays"}).WithHeader("only-on-mondays", true)
	return signWith(t, jose.SigningKey{Algorithm: jose.HS256, Key: []byte(secret)}, options, claims(nil))
}

func twice(t *testing.T) string {
	t.Helper()
	body, _ := json.Marshal(claims(nil))
	return sign(t, jose.HS256, []byte(secret), "", json.RawMessage(`{"tenant_id":"globex",`+string(body[1:])))
}

// embedded is signed with the attacker's key, which stands in its header.
func embedded(t *testing.T) string {
	t.Helper()
	return signWith(t, jose.SigningKey{Algorithm: jose.RS256, Key: otherRSA}, &jose.SignerOptions{EmbedJWK: true}, claims(nil))
}

func asJSON(t *testing.T) string {
	t.Helper()
	parts := strings.Split(sign(t, jose.HS256, []byte(secret), "", claims(nil)), ".")
	return `{"protected":"` + parts[0] + `","payload":"` + parts[1] + `","signature":"` + parts[2] + `"}`
}

// A public key, which everybody knows, is no secret: not as the file's PEM, not as its DER, not as another algorithm's.
func TestAPublicKeyIsNoSecret(t *testing.T) {
	t.Parallel()
	file := allKeys(t)
	v := verifier(t, file)
	// The library refuses a key of another kind than the algorithm's, too; here none comes so far.
	if keys, err := v.keys.find(t.Context(), "", jose.HS256); err != nil || len(keys) > 0 {
		t.Errorf("%d keys of the file are tried as a secret: %v", len(keys), err)
	}
	for name, public := range map[string]crypto.PublicKey{"RSA": rsaKey.Public(), "ECDSA": ecKey.Public(), "Ed25519": edKey.Public()} {
		der, err := x509.MarshalPKIXPublicKey(public)
		if err != nil {
			t.Fatal(err)
		}
		text := pemOf(t, public)
		for form, bytes := range map[string][]byte{
			"PEM": text, "PEM without its last line's end": text[:len(text)-1], "DER": der, "file": file,
		} {
			if caller, err := v.Verify(t.Context(), sign(t, jose.HS256, bytes, "", claims(nil))); !errors.Is(err, ErrInvalid) {
				t.Errorf("the %s of the key for %s as a secret: it is of %+v, %v", form, name, caller, err)
			}
		}
	}
	for name, token := range map[string]string{
		"another RSA key":                sign(t, jose.RS256, otherRSA, "", claims(nil)),
		"PS256 by our key for RS256":     sign(t, jose.PS256, rsaKey, "", claims(nil)),
		"RS512 by our key for RS256":     sign(t, jose.RS512, rsaKey, "", claims(nil)),
		"a token that says it is ES256":  forge(`{"alg":"ES256"}`, `{"tenant_id":"acme"}`, strings.Repeat("\x00", 64)),
		"a token that says it is EdDSA":  forge(`{"alg":"EdDSA"}`, `{"tenant_id":"acme"}`, strings.Repeat("\x00", 64)),
		"a token that says it is RS256":  forge(`{"alg":"RS256"}`, `{"tenant_id":"acme"}`, strings.Repeat("\x00", 256)),
		"a name of a key that is a path": sign(t, jose.HS256, []byte(secret), "../../dev/null", claims(nil)),
	} {
		if caller, err := v.Verify(t.Context(), token); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: it is of %+v, %v", name, caller, err)
		}
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	private, err := x509.MarshalPKCS8PrivateKey(rsaKey)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct{ file, want string }{
		"a short secret":       {"0123456789abcdef", "32 bytes"},
		"nothing":              {"", "32 bytes"},
		"white space":          {strings.Repeat(" ", 64), "32 bytes"},
		"a private key":        {string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})), "no public key"},
		"half a block of PEM":  {string(pemOf(t, rsaKey.Public())[:100]), "no whole PEM block"},
		"a short RSA key":      {string(pemOf(t, shortRSA.Public())), "too short"},
		"another curve":        {string(pemOf(t, wrongCurve.Public())), "P-256"},
		"one good, one short":  {string(pemOf(t, rsaKey.Public())) + string(pemOf(t, shortRSA.Public())), "too short"},
		"rubbish in the block": {"-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "asn1"},
	} {
		if keys, err := parseKeys([]byte(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d keys, %v; want %q", name, len(keys), err, c.want)
		}
	}
	for name, c := range map[string]Config{
		"no keys":        {Issuer: "i", Audience: "a"},
		"keys twice":     {KeyFile: "f", KeysURL: "https://issuer.test/keys", Issuer: "i", Audience: "a"},
		"no issuer":      {KeysURL: "https://issuer.test/keys", Audience: "a"},
		"no audience":    {KeysURL: "https://issuer.test/keys", Issuer: "i"},
		"plain http":     {KeysURL: "http://issuer.test/keys", Issuer: "i", Audience: "a"},
		"no such file":   {KeyFile: "/nonexistent", Issuer: "i", Audience: "a"},
		"a file as URL":  {KeysURL: "file:///etc/keys", Issuer: "i", Audience: "a"},
		"a name, no URL": {KeysURL: "issuer.test", Issuer: "i", Audience: "a"},
	} {
		if _, err := New(c); err == nil {
			t.Errorf("%s: it is accepted", name)
		}
	}
}

// What is remembered ends with the token.
func TestATokenEndsAlthoughItIsRemembered(t *testing.T) {
	t.Parallel()
	v := verifier(t, []byte(secret))
	now := theBeginning
	v.now = func() time.Time { return now }
	token := sign(t, jose.HS256, []byte(secret), "", claims(map[string]any{"exp": now.Add(20 * time.Second).Unix()}))
	for _, c := range []struct {
		after time.Duration
		valid bool
	}{{0, true}, {29 * time.Second, true}, {31 * time.Second, false}, {time.Hour, false}} {
		now = theBeginning.Add(c.after)
		if _, err := v.Verify(t.Context(), token); (err == nil) != c.valid {
			t.Errorf("after %s: %v", c.after, err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	for alg, k := range map[jose.SignatureAlgorithm]any{jose.RS256: rsaKey, jose.ES256: ecKey, jose.EdDSA: edKey} {
		v, token := verifier(b, allKeys(b)), sign(b, alg, k, "", claims(nil))
		b.Run(string(alg)+"/checked", func(b *testing.B) {
			for b.Loop() {
				if _, err := v.check(b.Context(), token, theBeginning); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(string(alg)+"/remembered", func(b *testing.B) {
			for b.Loop() {
				if _, err := v.Verify(b.Context(), token); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
