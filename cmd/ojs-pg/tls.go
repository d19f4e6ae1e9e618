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

func tlsFlags() []cli.Flag {
	return []cli.Flag{
		certificateFlag("`FILE` of the certificate, in PEM with those that lead to its root: HTTPS instead of HTTP"),
		&cli.StringFlag{
			Name: "tls-key", Sources: cli.EnvVars("OJS_TLS_KEY"),
			Usage: "`FILE` of its private key; both are read again when they have changed",
		},
	}
}

func certificateFlag(usage string) cli.Flag {
	return &cli.StringFlag{Name: "tls-cert", Sources: cli.EnvVars("OJS_TLS_CERT"), Usage: usage}
}

// scheme is that of the server's address.
func scheme(c *cli.Command) string {
	if c.String("tls-cert") != "" {
		return "https"
	}
	return "http"
}

// secured speaks TLS on socket, if there is a certificate. It takes socket: if it fails, it closes it.
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
	// HTTP/1.1 alone: there, an answer that a client has not taken is an error of the write, and its jobs go back at once.
	return tls.NewListener(socket, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: k.get,
	}), nil
}

// lookEvery is the shortest time between two looks whether the files have changed.
const lookEvery = time.Second

// certificate is a TLS certificate that is read again when its files have changed.
type certificate struct {
	cert, key string
	log       *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	state   string // of the files when they were read last
	looked  time.Time
}

// get is for a handshake.
func (k *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now := time.Now(); now.Sub(k.looked) >= lookEvery {
		k.looked = now
		if k.files() != k.state {
			// The one file may have been replaced before the other. Then the next look finds them changed again.
			if err := k.load(); err != nil {
				k.log.Error("the certificate has changed and cannot be used; the one before stays", "error", err)
			} else {
				k.log.Info("the certificate has been read again", "file", k.cert)
			}
		}
	}
	return k.current, nil
}

func (k *certificate) load() error {
	k.state = k.files()
	pair, err := tls.LoadX509KeyPair(k.cert, k.key)
	if err != nil {
		return fmt.Errorf("read the certificate for TLS: %w", err)
	}
	k.current = &pair
	return nil
}

// files says what tells the files from those that were read last.
func (k *certificate) files() (state string) {
	for _, name := range []string{k.cert, k.key} {
		if info, err := os.Stat(name); err == nil {
			state += fmt.Sprint(info.ModTime().UnixNano(), " ", info.Size(), " ")
		}
	}
	return state
}

// onlyThis is a client of a server on this machine, which is known by its very certificate: that is made out to a name, and not to this
// machine's address.
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
