package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/urfave/cli/v3"

	"github.com/ojs-pg/ojs-pg/internal/cmdline"
)

// healthCommand returns `ojs-pg health`, for health checks of containers, whose images have neither
// a shell nor curl.
func healthCommand() *cli.Command {
	return &cli.Command{
		Name:  "health",
		Usage: "ask the server on this machine for its health, and fail unless it is healthy",
		Flags: []cli.Flag{
			&cli.StringFlag{
				Name: "listen", Value: "127.0.0.1:8080", Sources: cli.EnvVars("OJS_LISTEN"),
				Usage: "`ADDRESS` that the server was started with",
			},
			certificateFlag("`FILE` of the certificate that the server was started with, if it uses TLS"),
		},
		Action: func(ctx context.Context, c *cli.Command) error {
			if err := cmdline.NoArguments(c); err != nil {
				return err
			}
			host, port, err := net.SplitHostPort(c.String("listen"))
			if err != nil {
				return cmdline.Misuse(err)
			}
			// A server that listens on all addresses is reached on the loopback address.
			if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
				host = "127.0.0.1"
			}
			client := http.DefaultClient
			if file := c.String("tls-cert"); file != "" {
				if client, err = onlyThis(file); err != nil {
					return err
				}
			}
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			url := scheme(c) + "://" + net.JoinHostPort(host, port) + "/ojs/v1/health"
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			response, err := client.Do(request)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(io.LimitReader(response.Body, 1<<16))
			if err != nil {
				return err
			}
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("the server answers %s: %s", response.Status, body)
			}
			_, err = fmt.Fprintf(c.Root().Writer, "%s\n", body)
			return err
		},
	}
}
