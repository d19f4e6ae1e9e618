package main

import (
	"bytes"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
)

// tlsFlags are the options for HTTPS.
func tlsFlags() []cli.Flag {
	return []cli.Flag{
		certificateFlag("`FILE` with the certificate in PEM, and those that lead to its root; with it the server speaks HTTPS"),
		&cli.StringFlag{
			Name: "tls-key", Sources: cli.EnvVars("OJS_TLS_KEY"),
			Usage: "`FILE` with its private key; the server reads both files again when they have changed",
		},
	}
}

// certificateFlag is the option that names the certificate, for servers and for health.
func certificateFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "tls-cert", Sources: cli.EnvVars("OJS_TLS_CERT"), Usage: usage}
}

// scheme returns the scheme of the server's address, http or https.
func scheme(c *cli.Command) string {
	if c.String("tls-cert") != "" {
		return "https"
	}
	return "http"
}

// secured returns socket, with TLS if there is a certificate. If it fails, it closes socket, so
// that the caller need not.
func secured(c *cli.Command, socket net.Listener) (net.Listener, error) {
	k := &certificate{cert: c.String("tls-cert"), key: c.String("tls-key"), log: cmdline.Logger(c)}
	switch {
	case k.cert == "" && k.key == "":
		return socket, nil
	case k.cert == "" || k.key == "":
		_ = socket.Close()
		return nil, cmdline.Misuse(errors.New("TLS needs both --tls-cert and --tls-key"))
	}
	if err := k.load(); err != nil {
		_ = socket.Close()
		return nil, err
	}
	// Only HTTP/1.1 is offered. If a client does not read an answer, the write fails there, and the
	// server gives the jobs of the answer back at once.
	return tls.NewListener(socket, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: k.get,
	}), nil
}

// lookEvery is the shortest time between two checks whether the files have changed.
const lookEvery = time.Second

// certificate is a TLS certificate that is read again when its files have changed, so that a
// renewed certificate needs no restart.
type certificate struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	state   string    // of the files when they were read last, as files returns it
	looked  time.Time // when the files were checked last
}

// get returns the certificate for a handshake. If the files have changed and cannot be used, it
// logs that and returns the certificate that it has, because otherwise every handshake would fail.
func (k *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.Sub(k.looked) >= lookEvery {
		k.looked = now
		if k.files() != k.state {
			// One file may have been replaced before the other. Then the next check finds a change
			// again.
			if err := k.load(); err != nil {
				k.log.Error("the changed certificate cannot be used; the previous one stays in use", "error", err)
			} else {
				k.log.Info("read the changed certificate", "file", k.cert)
			}
		}
	}
	return k.current, nil
}

// load reads both files. It notes their state before, so that a change while it reads is noticed.
// It fails, and keeps the certificate, if they are not a certificate and its key.
func (k *certificate) load() error {
	k.state = k.files()
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return fmt.Errorf("read the certificate for TLS: %w", err)
	}
	k.current = &pair
	return nil
}

// files returns the times and sizes of both files, which change when a file is replaced.
func (k *certificate) files() (state string) {
	for _, name := range []string{k.cert, k.key} {
		if info, err := os.Stat(name); err == nil {
			state += fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size(), " ")
		}
	}
	return state
}

// onlyThis returns a client of a server on this machine that accepts the certificate of the file
// and no other. A client that verifies names would refuse it, because a certificate is for a name,
// and the client connects to an address.
func onlyThis(file string) (*http.Client, error) {
	content, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	own, _ := pem.Decode(content)
	if own == nil {
		return nil, fmt.Errorf("%s holds no certificate", file)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{
		MinVersion:         tls.VersionTLS12,
		InsecureSkipVerify: true, // VerifyConnection is stricter
		VerifyConnection: func(state tls.ConnectionState) error {
			if !bytes.Equal(state.PeerCertificates[0].Raw, own.Bytes) {
				return fmt.Errorf("the server has another certificate than %s", file)
			}
			return nil
		},
	}}}, nil
}
