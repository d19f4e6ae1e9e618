package jwt

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/go-jose/go-jose/v4"
)

// algorithms are the signature algorithms that are accepted.
var algorithms = []jose.SignatureAlgorithm{jose.HS256, jose.RS256, jose.ES256, jose.EdDSA}

// What keys must have at least.
const (
	minSecret  = 32 // bytes
	minRSABits = 2048
)

// key verifies signatures of one algorithm. The key names the algorithm and the token does not, so
// a public key is never taken for a secret of HS256.
type key struct {
	name     string // kid; empty in a file
	alg      jose.SignatureAlgorithm
	material any
}

// fixed are the keys of a file. They are tried in turn: during a rotation there are two.
type fixed []key

func (f fixed) find(_ context.Context, _ string, alg jose.SignatureAlgorithm) ([]key, error) {
	return slices.DeleteFunc(slices.Clone(f), func(k key) bool { return k.alg != alg }), nil
}

// readFile reads public keys in PEM. A file without PEM is a secret.
func readFile(name string) (fixed, error) {
	content, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read the keys of tokens: %w", err)
	}
	keys, err := parseKeys(content)
	if err != nil {
		return nil, fmt.Errorf("the keys of tokens in %s: %w", name, err)
	}
	return keys, nil
}

func parseKeys(content []byte) (keys fixed, err error) {
	if !bytes.Contains(content, []byte("-----BEGIN")) {
		secret := bytes.TrimSpace(content)
		if len(secret) < minSecret {
			return nil, fmt.Errorf("a secret needs %d bytes, and this has %d", minSecret, len(secret))
		}
		return fixed{{alg: jose.HS256, material: secret}}, nil
	}
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		public, err := parsePublic(block)
		if err != nil {
			return nil, err
		}
		alg, err := algorithmOf(public)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key{alg: alg, material: public})
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no whole PEM block")
	}
	return keys, nil
}

func parsePublic(block *pem.Block) (any, error) {
	switch block.Type {
	case "PUBLIC KEY":
		return x509.ParsePKIXPublicKey(block.Bytes)
	case "RSA PUBLIC KEY":
		return x509.ParsePKCS1PublicKey(block.Bytes)
	case "CERTIFICATE":
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		return certificate.PublicKey, nil
	}
	return nil, fmt.Errorf("a block %q is no public key, and no other is needed to verify tokens", block.Type)
}

// algorithmOf returns the only algorithm that a public key is accepted for.
func algorithmOf(public any) (jose.SignatureAlgorithm, error) {
	switch k := public.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() < minRSABits {
			return "", fmt.Errorf("an RSA key of %d bits is too short: %d at least", k.N.BitLen(), minRSABits)
		}
		return jose.RS256, nil
	case *ecdsa.PublicKey:
		if k.Curve != elliptic.P256() {
			return "", errors.New("a key for ECDSA must be on the curve P-256")
		}
		return jose.ES256, nil
	case ed25519.PublicKey:
		return jose.EdDSA, nil
	}
	return "", fmt.Errorf("a key of type %T is none of RSA, ECDSA and Ed25519", public)
}
