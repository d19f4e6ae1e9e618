package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/urfave/cli/v3"
	"go.yaml.in/yaml/v3"

	"github.com/ojs-pg/ojs-pg/internal/pgtest"
)

// manifest holds the fields of a Kubernetes manifest that the tests read, of any kind.
type manifest struct {
	Kind       string
	Metadata   struct{ Name string }
	StringData map[string]string `yaml:"stringData"`
	Spec       struct {
		Replicas     int
		MinAvailable int `yaml:"minAvailable"`
		Selector     map[string]any
		Template     struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
		Ports []struct {
			TargetPort string `yaml:"targetPort"`
		}
	}
}

type pod struct {
	Grace           int64 `yaml:"terminationGracePeriodSeconds"`
	SecurityContext struct {
		RunAsNonRoot bool  `yaml:"runAsNonRoot"`
		RunAsUser    int64 `yaml:"runAsUser"`
	} `yaml:"securityContext"`
	Containers []container
}

type container struct {
	Args []string
	Env  []struct {
		Name, Value string
		ValueFrom   struct {
			SecretKeyRef struct{ Name, Key string } `yaml:"secretKeyRef"`
		} `yaml:"valueFrom"`
	}
	Ports []struct {
		Name          string
		ContainerPort int `yaml:"containerPort"`
	}
	Liveness  probe `yaml:"livenessProbe"`
	Readiness probe `yaml:"readinessProbe"`
}

type probe struct {
	HTTPGet struct{ Path, Port string } `yaml:"httpGet"`
}

// manifests returns the manifests of deploy/kubernetes, by kind and name.
func manifests(t *testing.T) map[string]manifest {
	t.Helper()
	files, err := filepath.Glob("../../deploy/kubernetes/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	found := map[string]manifest{}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for documents := yaml.NewDecoder(bytes.NewReader(raw)); ; {
			var m manifest
			err := documents.Decode(&m)
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			found[m.Kind+" "+m.Metadata.Name] = m
		}
	}
	return found
}

// environmentOf returns the environment that a container gives its command, without variables from
// secrets. The test fails if a secret does not exist.
func environmentOf(t *testing.T, all map[string]manifest, c container) (env []string) {
	t.Helper()
	at := command()
	known := environmentNames(at)
	for _, word := range c.Args {
		i := slices.IndexFunc(at.Commands, func(sub *cli.Command) bool { return sub.Name == word })
		if i < 0 {
			t.Fatalf("%q: there is no command %s", c.Args, word)
		}
		at = at.Commands[i]
		known = append(known, environmentNames(at)...)
	}
	for _, v := range c.Env {
		if !slices.Contains(known, v.Name) {
			t.Errorf("%q does not read %s", c.Args, v.Name)
		}
		if ref := v.ValueFrom.SecretKeyRef; ref.Name != "" {
			if all["Secret "+ref.Name].StringData[ref.Key] == "" {
				t.Errorf("no secret %s has %s", ref.Name, ref.Key)
			}
			continue
		}
		env = append(env, v.Name+"="+v.Value)
	}
	return env
}

func environmentNames(c *cli.Command) (names []string) {
	for _, flag := range c.Flags {
		if documented, ok := flag.(cli.DocGenerationFlag); ok {
			names = append(names, documented.GetEnvVars()...)
		}
	}
	return names
}

// The program accepts what the manifests give it: commands, variables, ports, paths of probes, and the
// time to end.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	all := manifests(t)
	d := pgtest.New(t)

	job := all["Job ojs-pg-migrate"].Spec.Template.Spec
	env := append(environmentOf(t, all, job.Containers[0]), "DATABASE_URL="+d.URL)
	if status, output := finish(t, env, job.Containers[0].Args...); status != 0 {
		t.Errorf("the migration ends with %d: %s", status, output)
	}

	deployment := all["Deployment ojs-pg"].Spec
	server := deployment.Template.Spec.Containers[0]
	env = append(environmentOf(t, all, server), "DATABASE_URL="+d.ServiceURL)
	var port string
	for i, v := range env {
		if address, ok := strings.CutPrefix(v, "OJS_LISTEN="); ok {
			_, port, _ = net.SplitHostPort(address)
			env[i] = "OJS_LISTEN=127.0.0.1:0"
		}
	}
	if len(server.Ports) != 1 || fmt.Sprint(server.Ports[0].ContainerPort) != port {
		t.Errorf("it listens on %s, and the container has %v", port, server.Ports)
	}
	p := launch(t, env, server.Args...)
	base := p.find(`"serving","address":"(http://[^"]+)"`)
	for _, probe := range []probe{server.Liveness, server.Readiness} {
		if status, answer := request(t, "GET", base+probe.HTTPGet.Path, ""); status != 200 || probe.HTTPGet.Port != server.Ports[0].Name {
			t.Errorf("the probe of %s at port %s is answered with %d: %s", probe.HTTPGet.Path, probe.HTTPGet.Port, status, answer)
		}
	}
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("SIGTERM ended it with %d", status)
	}
	checkEnd(t, env, deployment.Template.Spec.Grace)
	checkSelectors(t, all)
}

// checkEnd checks that the pod is not killed before the server has had all its time to end.
func checkEnd(t *testing.T, env []string, seconds int64) {
	t.Helper()
	needed := cutGrace + answerGrace
	for _, flag := range serverFlags() {
		if duration, ok := flag.(*cli.DurationFlag); ok && (duration.Name == "drain" || duration.Name == "drain-delay") {
			took := duration.Value
			for _, v := range env {
				if value, ok := strings.CutPrefix(v, duration.GetEnvVars()[0]+"="); ok {
					var err error
					if took, err = time.ParseDuration(value); err != nil {
						t.Error(err)
					}
				}
			}
			needed += took
		}
	}
	if grace := time.Duration(seconds) * time.Second; grace < needed+5*time.Second {
		t.Errorf("the pod has %v to end; the server may take %v", grace, needed)
	}
}

// checkSelectors checks that selectors of the server's pods have their labels, and that one pod may be
// taken away.
func checkSelectors(t *testing.T, all map[string]manifest) {
	t.Helper()
	deployment := all["Deployment ojs-pg"].Spec
	labels := fmt.Sprint(deployment.Template.Metadata.Labels)
	service, budget := all["Service ojs-pg"].Spec, all["PodDisruptionBudget ojs-pg"].Spec
	for what, selector := range map[string]any{
		"Deployment": deployment.Selector["matchLabels"], "Service": service.Selector,
		"PodDisruptionBudget": budget.Selector["matchLabels"],
	} {
		if fmt.Sprint(selector) != labels {
			t.Errorf("%s selects %v, and the pods have %s", what, selector, labels)
		}
	}
	if len(service.Ports) != 1 || service.Ports[0].TargetPort != deployment.Template.Spec.Containers[0].Ports[0].Name {
		t.Errorf("the Service leads to %v", service.Ports)
	}
	if budget.MinAvailable < 1 || budget.MinAvailable >= deployment.Replicas {
		t.Errorf("of %d servers %d have to stay", deployment.Replicas, budget.MinAvailable)
	}
}

// The image does not run as root, as the manifests say, and its health check is a command of the program.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	_, image, _ := strings.Cut(string(raw), "FROM scratch")
	word := func(pattern string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)` + pattern).FindStringSubmatch(image)
		if m == nil {
			t.Fatalf("the image has nothing like %s", pattern)
		}
		return m[1]
	}
	user, port := word(`^USER (\d+):\d+$`), word(`^EXPOSE (\d+)$`)
	if listen := word(`^ENV OJS_LISTEN=(\S+)$`); !strings.HasSuffix(listen, ":"+port) {
		t.Errorf("it listens on %s and exposes %s", listen, port)
	}
	for _, name := range []string{word(`^HEALTHCHECK .* CMD \["/ojs-pg", "(\w+)"\]$`), word(`^CMD \["(\w+)"\]$`)} {
		if command().Command(name) == nil {
			t.Errorf("there is no command %s", name)
		}
	}
	for _, of := range []string{"Deployment ojs-pg", "Job ojs-pg-migrate"} {
		pod := manifests(t)[of].Spec.Template.Spec
		if c := pod.SecurityContext; !c.RunAsNonRoot || fmt.Sprint(c.RunAsUser) != user || user == "0" {
			t.Errorf("%s: the pod runs as %d, the image as %s", of, c.RunAsUser, user)
		}
	}
}
