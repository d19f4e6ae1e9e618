package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxBody is the number of bytes of a response that are read at most.
const maxBody = 32 << 20

// Target is the server under test.
type Target struct {
	URL    string // without a slash at the end
	Client *http.Client
}

// Reset empties the server through its reset route, which only a server made for tests has.
func (t Target) Reset(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, t.URL+"/ojs/v1/admin/reset", nil)
	if err != nil {
		return err
	}
	resp, err := t.Client.Do(req)
	if err != nil {
		return fmt.Errorf("resetting the server: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err == nil && resp.StatusCode/100 != 2 {
		err = fmt.Errorf("status %d: %s", resp.StatusCode, clip(string(body), 300))
	}
	if err != nil {
		return fmt.Errorf("resetting the server: %w", err)
	}
	return nil
}

// Run plays the case and returns its failures; none if it passed. It stops at the first step that failed,
// because later steps depend on it. The teardown always runs.
func (c Case) Run(ctx context.Context, t Target) []Failure {
	if c.unread != nil {
		return []Failure{{Step: "reading " + c.File, At: "case", Got: c.unread.Error(), Want: "a case this engine understands"}}
	}
	s := newScope()
	failures := t.play(ctx, s, c.steps)
	return append(failures, t.play(ctx, s, c.teardown)...)
}

func (t Target) play(ctx context.Context, s *scope, steps []step) []Failure {
	groups, err := inGroups(steps)
	if err != nil {
		return []Failure{{At: "steps", Got: err.Error(), Want: "steps that can be carried out"}}
	}
	for _, group := range groups {
		if failures := t.playGroup(ctx, s, group); len(failures) > 0 {
			return failures
		}
	}
	return nil
}

// inGroups returns groups of steps that run at the same moment: steps that name each other in
// parallel_with. Every other step is a group of its own.
func inGroups(steps []step) ([][]step, error) {
	var groups [][]step
	var open []string // ids that belong to the last group: its members and whom they name
	for _, s := range steps {
		if s.parallel != "" && !slices.ContainsFunc(steps, func(o step) bool { return o.id == s.parallel && o.id != s.id }) {
			return nil, fmt.Errorf("step %s runs in parallel with %q, which is no other step", s.id, s.parallel)
		}
		if len(groups) > 0 && (slices.Contains(open, s.id) || s.parallel != "" && slices.Contains(open, s.parallel)) {
			groups[len(groups)-1] = append(groups[len(groups)-1], s)
		} else {
			groups = append(groups, []step{s})
			open = nil
			if s.parallel == "" {
				continue
			}
		}
		open = append(open, s.id)
		if s.parallel != "" {
			open = append(open, s.parallel)
		}
	}
	for _, g := range groups {
		for _, s := range g {
			if s.parallel != "" && !slices.ContainsFunc(g, func(o step) bool { return o.id == s.parallel }) {
				return nil, fmt.Errorf("step %s runs in parallel with %s, but other steps stand between them", s.id, s.parallel)
			}
			if s.parallel != "" && (s.action == "WAIT" || s.action == "ASSERT") {
				return nil, fmt.Errorf("step %s has no request to run in parallel", s.id)
			}
		}
	}
	return groups, nil
}

// outcome holds the responses to a step's requests, or their error.
type outcome struct {
	responses []response
	err       error
}

// reports holds the reports of the steps of a group.
type reports []report

func (rs reports) failures() []Failure {
	var all []Failure
	for _, r := range rs {
		all = append(all, r.failures...)
	}
	return all
}

// playGroup runs the steps of a group at the same moment. All requests are built before the first one is
// sent.
func (t Target) playGroup(ctx context.Context, s *scope, group []step) []Failure {
	found := make(reports, len(group))
	sends := make([]func() ([]response, error), len(group))
	for i, st := range group {
		found[i].step = st.id
		switch st.action {
		case "WAIT", "ASSERT":
			sends[i] = func() ([]response, error) { return nil, pause(ctx, st.delay) }
		default:
			send, err := t.prepare(ctx, s, st)
			if err != nil {
				found[i].broken("request", err)
			}
			sends[i] = send
		}
	}
	if f := found.failures(); len(f) > 0 {
		return f
	}
	outcomes := together(sends)
	for i, st := range group {
		if err := outcomes[i].err; err != nil {
			found[i].add("request", err.Error(), "an answer")
			continue
		}
		for _, resp := range outcomes[i].responses {
			s.steps[st.id] = resp.context()
		}
	}
	if f := found.failures(); len(f) > 0 {
		return f
	}
	for i, st := range group {
		st.judge(s, outcomes[i].responses, &found[i])
	}
	return found.failures()
}

// together calls all functions at the same moment and returns when all have ended.
func together(sends []func() ([]response, error)) []outcome {
	outcomes := make([]outcome, len(sends))
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range sends {
		wg.Go(func() {
			<-start
			outcomes[i].responses, outcomes[i].err = sends[i]()
		})
	}
	close(start)
	wg.Wait()
	return outcomes
}

func (st step) judge(s *scope, responses []response, r *report) {
	for _, resp := range responses {
		for _, a := range st.asserts {
			a.check(s, resp, r)
		}
		if len(st.asserts) == 0 {
			assertions{}.check(s, resp, r)
		}
	}
	for _, a := range st.asserts {
		a.checkSteps(s, r)
	}
	for _, name := range sortedKeys(st.captures) {
		p, err := parsePath(st.captures[name])
		if err != nil {
			r.broken("capture "+name, err)
			continue
		}
		got := responses[len(responses)-1].find(p, true)
		if !got.present || got.v == nil {
			r.add("capture "+name+" from "+st.captures[name], got.String(), "a value")
			continue
		}
		s.captured[name] = got.v
	}
}

// prepare builds the step's request, and returns a function that sends it as often as the step says.
func (t Target) prepare(ctx context.Context, s *scope, st step) (func() ([]response, error), error) {
	url, err := s.text(st.path)
	if err != nil {
		return nil, err
	}
	header := http.Header{}
	for name, v := range st.headers {
		if v, err = s.text(v); err != nil {
			return nil, err
		}
		header.Set(name, v)
	}
	body, err := st.fillBody(s)
	if err != nil {
		return nil, err
	}
	if st.hasBody && header.Get("Content-Type") == "" {
		header.Set("Content-Type", "application/openjobspec+json")
	}
	// Built once here so that a bad URL or header is the case's failure, and again for each sending.
	build := func() (*http.Request, error) {
		req, err := http.NewRequestWithContext(ctx, st.action, t.URL+url, bytes.NewReader(body))
		if err != nil {
			return nil, err
		}
		req.Header = header.Clone()
		return req, nil
	}
	if _, err := build(); err != nil {
		return nil, err
	}
	return func() ([]response, error) { return t.repeat(ctx, st, build) }, nil
}

// fillBody returns the body of the request with templates resolved, or nil if the step has no body.
func (st step) fillBody(s *scope) ([]byte, error) {
	if !st.hasBody {
		return nil, nil
	}
	if st.raw {
		if text, ok := st.body.(string); ok {
			return []byte(text), nil
		}
		return encode(st.body)
	}
	filled, err := s.fill(st.body, false)
	if err != nil {
		return nil, err
	}
	return encode(filled)
}

// repeat pauses as long as the step says, and sends its request as often as it says.
func (t Target) repeat(ctx context.Context, st step, build func() (*http.Request, error)) ([]response, error) {
	if err := pause(ctx, st.delay); err != nil {
		return nil, err
	}
	var all []response
	for range st.repeat {
		req, err := build()
		if err != nil {
			return nil, err
		}
		resp, err := t.send(req)
		if err != nil {
			return nil, err
		}
		resp.wrapped = st.abstract
		all = append(all, resp)
	}
	return all, nil
}

func (t Target) send(req *http.Request) (response, error) {
	began := time.Now()
	resp, err := t.Client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxBody))
	if err != nil {
		return response{}, fmt.Errorf("reading the response: %w", err)
	}
	r := response{status: resp.StatusCode, header: resp.Header, raw: raw, elapsed: time.Since(began)}
	if strings.TrimSpace(string(raw)) != "" {
		r.body, r.notJSON = decode(raw)
	}
	return r, nil
}

func pause(ctx context.Context, d time.Duration) error {
	if d == 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("interrupted"), ctx.Err())
	}
}
