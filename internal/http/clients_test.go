package httpapi

import (
	"strings"
	"testing"

	"github.com/ojs-pg/ojs-pg/internal/jsonbody"
)

// The official clients' requests are answered with what they can read. testdata/clients has them as they send them.
func TestOfficialClients(t *testing.T) {
	t.Parallel()
	const json = "Accept: " + jsonbody.ContentType
	for name, headers := range map[string][]string{
		"go":         {json, "User-Agent: Go-http-client/1.1", "OJS-Version: " + goSDKVersion},
		"javascript": {json, "User-Agent: node", "OJS-Version: 1.0", "X-Request-ID: 0b6b1b2e-6d2c-4c0f-9d38-0f8e0c1b7f11"},
		"python":     {json, "User-Agent: python-httpx/0.27.0", "OJS-Version: 1.0", "X-Request-ID: req_1"},
		"cli":        {json, "User-Agent: Go-http-client/1.1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := examples(t, "testdata/clients/"+name+".md")
			for _, x := range all {
				x.headers = append(x.headers, headers...)
			}
			play(t, all)
			for _, x := range all {
				reads := x.carried == jsonbody.ContentType
				if name == "python" {
					reads = strings.Contains(x.carried, "application/json")
				}
				if !reads {
					t.Errorf("%s is answered as %q", x, x.carried)
				}
			}
		})
	}
}
