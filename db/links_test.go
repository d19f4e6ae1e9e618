package db_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	markdownLink = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	codeBlock    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	codeSpan     = regexp.MustCompile("`[^`\n]+`")
	heading      = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	// docPath matches a path below docs/ that a comment, a message or a script mentions.
	docPath = regexp.MustCompile(`(?:^|[^\w/.-])(?:\.\./\.\./|\.\./)?(docs/[a-zA-Z0-9_/.-]+\.(?:md|json|yaml|svg|sql)(?:#[\w-]+)?)`)
)

// A relative link in a Markdown file leads to a file that exists, and to a heading of it. A path below docs/ that any other
// file mentions exists, too: without this test, a page that moves leaves messages behind that lead nowhere.
func TestLinksLeadSomewhere(t *testing.T) {
	t.Parallel()
	links, mentions := 0, 0
	anchors := map[string]map[string]bool{}
	check := func(file, link, target string) {
		path, fragment, _ := strings.Cut(target, "#")
		info, err := os.Stat(path)
		if err != nil {
			t.Errorf("%s: %s does not exist", file, link)
			return
		}
		if fragment == "" || info.IsDir() || filepath.Ext(path) != ".md" {
			return
		}
		if anchors[path] == nil {
			anchors[path] = anchorsOf(t, path)
		}
		if !anchors[path][fragment] {
			t.Errorf("%s: %s leads to no heading", file, link)
		}
	}
	err := filepath.WalkDir("..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := entry.Name(); entry.IsDir() && (name == ".git" || name == ".dev" || name == "dist" || name == "node_modules") {
			return fs.SkipDir
		}
		switch filepath.Ext(path) {
		case ".md", ".go", ".sql", ".sh", ".yml", ".yaml", "":
		default:
			return nil
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, "_test.go") { // tests make up paths, and fail by themselves if one that they read is gone
			return nil
		}
		if filepath.Ext(path) != ".md" {
			for _, m := range docPath.FindAllSubmatch(content, -1) {
				mentions++
				check(path, string(m[1]), filepath.Join("..", string(m[1])))
			}
			return nil
		}
		prose := codeSpan.ReplaceAllString(codeBlock.ReplaceAllString(string(content), ""), "")
		for _, m := range markdownLink.FindAllStringSubmatch(prose, -1) {
			if link := m[1]; strings.Contains(link, "://") || strings.HasPrefix(link, "mailto:") {
				continue
			} else if strings.HasPrefix(link, "#") {
				check(path, link, path+link)
			} else {
				check(path, link, filepath.Join(filepath.Dir(path), link))
			}
			links++
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 100 || mentions < 8 {
		t.Errorf("only %d links and %d mentions were found", links, mentions)
	}
}

// anchorsOf returns the names that GitHub gives the headings of a page.
func anchorsOf(t *testing.T, path string) map[string]bool {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(codeBlock.ReplaceAllString(string(content), ""), -1) {
		text := regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`).ReplaceAllString(m[1], "$1")
		name := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, text)
		unique := name
		for i := 1; found[unique]; i++ {
			unique = fmt.Sprintf("%s-%d", name, i)
		}
		found[unique] = true
	}
	return found
}
