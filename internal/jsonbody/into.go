package jsonbody

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ojs-pg/ojs-pg/internal/pg"
	"github.com/ojs-pg/ojs-pg/internal/problems"
)

// Optional is embedded in a request whose body may be left out.
type Optional struct{}

// MayBeLeftOut marks such a request.
func (Optional) MayBeLeftOut() {}

// Into reads the fields of o into the struct that into points to, and then calls the struct's
// Check(o), if it has one. Faults go to o. A field is read by its json name and by its type:
//
//	string, bool, int32, *string, *bool, *int32, *time.Time    a value
//	[]string                                                  an array of strings
//	json.RawMessage                                           the client's own bytes
//	*Object                                                   an object that Check reads by hand
//	a pointer to a struct                                     an object
//	an embedded struct                                        fields of the same object
//
// A field that is absent or null stays as it is. The tag check says more about a field. Its words
// are separated by commas:
//
//	required                 the field must be there
//	name                     a string must not be empty
//	id                       a string is a UUID
//	1..1000 or 1..           the bounds of an integer
//	when                     a time may count from now
//	object, array, number    the JSON type of the bytes
//	storable                 numbers must fit into jsonb
//	verbatim                 null is kept
//	scope                    null is refused: the field narrows what the request acts on
//
// A field that the struct does not have is refused, unless its name begins with ext_ or x_. If
// another field was probably meant, or the field belongs elsewhere, the error says so: a struct that
// knows where else fields belong has a method Belongs. The tag check of a blank field changes that:
//
//	configurable    other fields are refused as settings that this server does not have
//	near            only fields whose names are nearly known ones are refused: the others are stored
//	any             no field is refused: Check or SQL knows which there are
func (o *Object) Into(into any) {
	v := reflect.ValueOf(into).Elem()
	p := planOf(v.Type())
	// This comes first: if a field is missing, probably one with nearly its name is there.
	switch p.others {
	case "any":
	case "near":
		Near(o, p.names...)
	default:
		var belongs map[string]string
		if b, ok := into.(interface{ Belongs() map[string]string }); ok {
			belongs = b.Belongs()
		}
		only(o, p.refusal, belongs, p.names)
	}
	p.read(o, v)
	if c, ok := into.(interface{ Check(o *Object) }); ok {
		c.Check(o)
	}
}

// plan says how a struct is read. It is made once for each type.
type plan struct {
	fields  []fieldPlan
	names   []string
	others  string                    // the blank field's check, which says what happens to other fields
	refusal func(at string) *pg.Error // refusal of other fields
}

type fieldPlan struct {
	index int
	name  string // empty for an embedded struct
	check checks
	read  func(o *Object, f *fieldPlan, v reflect.Value)
}

type checks struct {
	required, name, id, when, storable, verbatim, scope bool

	kind      string // JSON type of bytes
	low, high int32
}

// plans keeps the plans of all types. Two goroutines may make a plan for one type at the same time:
// the first plan that is stored is used.
var plans sync.Map // from reflect.Type to *plan

func planOf(t reflect.Type) *plan {
	if p, ok := plans.Load(t); ok {
		return p.(*plan)
	}
	p, _ := plans.LoadOrStore(t, makePlan(t))
	return p.(*plan)
}

// makePlan makes the plan of a struct. It panics if a field cannot be read from JSON.
func makePlan(t reflect.Type) *plan {
	p := &plan{refusal: NotKnown}
	for i := range t.NumField() {
		field := t.Field(i)
		tag := field.Tag.Get("check")
		switch {
		case field.Type == reflect.TypeFor[Optional]():
		case field.Name == "_":
			if p.others = tag; tag == "configurable" {
				p.refusal = NotConfigurable
			} else if tag != "near" && tag != "any" {
				panic("unknown check " + tag)
			}
		case !field.Anonymous && !field.IsExported():
		case field.Anonymous:
			inner := planOf(field.Type)
			p.names = append(p.names, inner.names...)
			p.fields = append(p.fields, fieldPlan{index: i, read: func(o *Object, _ *fieldPlan, v reflect.Value) { inner.read(o, v) }})
		default:
			f := fieldPlan{index: i, name: field.Tag.Get("json"), check: parseChecks(tag), read: readerOf(field.Type)}
			if f.read == nil || f.name == "" {
				panic(fmt.Sprintf("%s.%s cannot be read from JSON", t, field.Name))
			}
			p.names = append(p.names, f.name)
			p.fields = append(p.fields, f)
		}
	}
	return p
}

func parseChecks(tag string) checks {
	c := checks{low: -1 << 31, high: 1<<31 - 1}
	for word := range strings.SplitSeq(tag, ",") {
		switch word {
		case "":
		case "required":
			c.required = true
		case "name":
			c.name = true
		case "id":
			c.id = true
		case "when":
			c.when = true
		case "storable":
			c.storable = true
		case "verbatim":
			c.verbatim = true
		case "scope":
			c.scope = true
		case "object", "array", "number":
			c.kind = word
		default:
			low, high, ok := strings.Cut(word, "..")
			n, err := strconv.ParseInt(low, 10, 32)
			if !ok || err != nil {
				panic("unknown check " + word)
			}
			c.low = int32(n)
			if high != "" {
				n, err = strconv.ParseInt(high, 10, 32)
				if err != nil {
					panic("unknown check " + word)
				}
				c.high = int32(n)
			}
		}
	}
	return c
}

func (p *plan) read(o *Object, v reflect.Value) {
	for i := range p.fields {
		f := &p.fields[i]
		if f.check.required && o.Raw(f.name) == nil {
			o.Missing(f.name)
			continue
		}
		// A client that wrote the field meant one tenant, one queue, or some jobs. Its variable was
		// empty. Without the field, the request would act on all of them.
		if f.check.scope && o.Has(f.name) && o.Raw(f.name) == nil {
			o.Fail(problems.Invalid(o.At(f.name), "must not be null; leave it out to act on all"))
			continue
		}
		f.read(o, f, v.Field(f.index))
	}
}

func readerOf(t reflect.Type) func(*Object, *fieldPlan, reflect.Value) {
	switch t {
	case reflect.TypeFor[string](), reflect.TypeFor[*string]():
		return readText
	case reflect.TypeFor[bool](), reflect.TypeFor[*bool]():
		return readFlag
	case reflect.TypeFor[int32](), reflect.TypeFor[*int32]():
		return readInteger
	case reflect.TypeFor[[]string]():
		return readTexts
	case reflect.TypeFor[*time.Time]():
		return readTime
	case reflect.TypeFor[json.RawMessage]():
		return readRaw
	case reflect.TypeFor[*Object]():
		return func(o *Object, f *fieldPlan, v reflect.Value) { *v.Addr().Interface().(**Object) = o.Child(f.name) }
	}
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return nil
	}
	return func(o *Object, f *fieldPlan, v reflect.Value) {
		if child := o.Child(f.name); child != nil {
			v.Set(reflect.New(t.Elem()))
			child.Into(v.Interface())
		}
	}
}

func readText(o *Object, f *fieldPlan, v reflect.Value) {
	read := o.Text
	switch {
	case f.check.name:
		read = o.Name
	case f.check.id:
		read = o.ID
	}
	put(v, read(f.name))
}

func readFlag(o *Object, f *fieldPlan, v reflect.Value) { put(v, o.Flag(f.name)) }

func readInteger(o *Object, f *fieldPlan, v reflect.Value) {
	n := o.Integer(f.name, f.check.low)
	if n != nil && *n > f.check.high {
		o.Fail(problems.Invalid(o.At(f.name), "must be at most %d", f.check.high))
		return
	}
	put(v, n)
}

// put sets a field that holds a value or a pointer to one.
func put[T any](v reflect.Value, value *T) {
	switch to := v.Addr().Interface().(type) {
	case **T:
		if value != nil {
			*to = value
		}
	case *T:
		if value != nil {
			*to = *value
		}
	}
}

func readTexts(o *Object, f *fieldPlan, v reflect.Value) {
	read := o.Texts
	if f.check.id {
		read = o.IDs
	}
	list := read(f.name)
	for i, text := range list {
		if f.check.name && text == "" {
			o.Fail(problems.Invalid(fmt.Sprintf("%s[%d]", o.At(f.name), i), "must not be empty"))
		}
	}
	if list != nil {
		*v.Addr().Interface().(*[]string) = list
	}
}

func readTime(o *Object, f *fieldPlan, v reflect.Value) {
	if f.check.when {
		put(v, o.When(f.name, time.Now()))
		return
	}
	put(v, o.Time(f.name))
}

func readRaw(o *Object, f *fieldPlan, v reflect.Value) {
	var raw []byte
	switch {
	case f.check.kind != "":
		raw = o.Typed(f.name, f.check.kind)
	case f.check.verbatim:
		raw = o.Verbatim(f.name)
	default:
		raw = o.Raw(f.name)
	}
	if raw == nil {
		return
	}
	if f.check.storable {
		o.Storable(raw, o.At(f.name))
	}
	*v.Addr().Interface().(*json.RawMessage) = raw
}
