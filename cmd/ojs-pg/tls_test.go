package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// makeCertificate writes a certificate for 127.0.0.1 and its key, and returns a pool that trusts it.
func makeCertificate(t *testing.T, cert, key string) *x509.CertPool {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "test"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pool := x509.NewCertPool()
	pool.AddCert(weak(x509.ParseCertificate(der)))
	return pool
}

func weak[T any](v T, _ error) T { return v }

// asked returns the status of a request over TLS, on a connection of its own, or 0 if it fails.
func asked(trusted *x509.CertPool, url, credential string) int {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	request.Header.Set("Authorization", "Bearer "+credential)
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return 0
	}
	defer response.Body.Close()
	return response.StatusCode
}

// A server with TLS, whose certificate is renewed while it runs, and with tokens.
func TestServeTLSAndTokens(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	other, secret := filepath.Join(dir, "o.pem"), filepath.Join(dir, "s")
	before := makeCertificate(t, cert, key)
	makeCertificate(t, other, filepath.Join(dir, "ok.pem"))
	const shared = "0123456789abcdef0123456789abcdef"
	if err := os.WriteFile(secret, []byte(shared), 0o600); err != nil {
		t.Fatal(err)
	}
	d := pgtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + d.ServiceURL, "OJS_TLS_KEY=" + key}, "serve", "--listen", "127.0.0.1:0", "--tls-cert", cert,
		"--auth", "jwt,api-key", "--jwt-keys", secret, "--jwt-issuer", "us", "--jwt-audience", "ojs")
	base := p.find(`msg=serving address=(https://\S+)$`)

	signer := weak(jose.NewSigner(jose.SigningKey{Algorithm: jose.HS256, Key: []byte(shared)}, nil))
	sign := func(claims string) string {
		return weak(weak(signer.Sign([]byte(claims))).CompactSerialize())
	}
	const end = `,"sub":"ada","aud":"ojs","exp":4102444800}`
	operator := sign(`{"iss":"us","scope":"admin"` + end)
	for _, c := range []struct {
		path, credential string
		status           int
	}{
		{"/ojs/v1/ready", "", 200},
		{"/ojs/v1/admin/tenants", operator, 200},
		{"/ojs/v1/admin/tenants", sign(`{"iss":"them","scope":"admin"` + end), 401},
		{"/ojs/v1/admin/tenants", sign(`{"iss":"us","scope":"produce"` + end), 401},
		{"/metrics", sign(`{"iss":"us","tenant_id":"acme","scope":"admin"` + end), 403},
		{"/ojs/v1/admin/tenants", pgtest.One[string](t, d.Operator(), "select secret from ojs.create_api_key(null, '{admin}')"), 200},
		{"/ojs/v1/admin/tenants", "", 401},
	} {
		if status := asked(before, base+c.path, c.credential); status != c.status {
			t.Errorf("%s with %q answers %d, want %d", c.path, c.credential, status, c.status)
		}
	}
	address := strings.TrimPrefix(base, "https://")
	if status, _ := request(t, "GET", "http://"+address+"/ojs/v1/ready", ""); status != 400 {
		t.Errorf("without TLS it answers %d", status)
	}
	for file, want := range map[string]int{cert: 0, other: 1, secret: 1} {
		if status, output := finish(t, nil, "health", "--listen", address, "--tls-cert", file); status != want {
			t.Errorf("health with %s ends with %d: %s", file, status, output)
		}
	}

	// A key that does not fit the certificate changes nothing. When its certificate is there too, the server
	// uses both.
	renewed := filepath.Join(dir, "n.pem")
	after := makeCertificate(t, renewed, key)
	pgtest.Eventually(t, "the server has seen the other key", func() bool {
		if status := asked(before, base+"/ojs/v1/ready", ""); status != 200 {
			t.Fatalf("with half a renewal it answers %d", status)
		}
		return strings.Contains(p.output(), "the previous one stays")
	})
	if err := os.Rename(renewed, cert); err != nil {
		t.Fatal(err)
	}
	pgtest.Eventually(t, "the server has the other certificate", func() bool { return asked(after, base+"/ojs/v1/ready", "") == 200 })
	if status := asked(before, base+"/ojs/v1/ready", ""); status != 0 {
		t.Errorf("who trusts the certificate before gets %d", status)
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("SIGTERM ended it with %d", status)
	}
	if strings.Contains(p.output(), shared) || strings.Contains(p.output(), operator) {
		t.Error("the log has a secret")
	}
}

func TestMistakesAboutCallers(t *testing.T) {
	t.Parallel()
	d := pgtest.New(t)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("too short"), 0o600); err != nil {
		t.Fatal(err)
	}
	makeCertificate(t, filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem"))
	for args, want := range map[string]string{
		"--listen 0.0.0.0:0":                      "say how callers are verified",
		"--auth password":                         `"password" is none of api-key, jwt, none`,
		"--auth none,jwt":                         "none excludes the other methods",
		"--tenant-header Authorization":           `"Authorization" cannot be the name`,
		"--tenant-header X-A,":                    `"" cannot be the name`,
		"--auth jwt":                              "one source of keys",
		"--auth jwt --jwt-keys " + secret:         "an audience",
		"--auth api-key --jwt-keys " + secret:     "does not have jwt",
		"--jwt-keys-url https://issuer.test/keys": "does not have jwt",
		"--auth jwt --jwt-issuer i --jwt-audience a --jwt-keys " + secret:                   "needs 32 bytes",
		"--auth jwt --jwt-issuer i --jwt-audience a --jwt-keys-url http://issuer.test/keys": "must be https",
		"--tls-cert " + dir + "/c.pem":                                                      "both --tls-cert and --tls-key",
		"--tls-key " + dir + "/k.pem":                                                       "both --tls-cert and --tls-key",
		"--tls-cert " + dir + "/c.pem --tls-key " + dir + "/none":                           "no such file",
		"--tls-cert " + secret + " --tls-key " + dir + "/k.pem":                             "read the certificate for TLS",
	} {
		if !strings.Contains(args, "--listen") {
			args += " --listen 127.0.0.1:0"
		}
		status, output := finish(t, []string{"DATABASE_URL=" + d.ServiceURL}, append([]string{"serve"}, strings.Fields(args)...)...)
		if status == 0 || !strings.Contains(output, want) {
			t.Errorf("serve %s ends with %d, want %q in:\n%s", args, status, want, output)
		}
	}
}
