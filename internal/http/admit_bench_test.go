package httpapi

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
)

// The cost of counting a request, while no request waits.
func BenchmarkAdmit(b *testing.B) {
	s := &Server{limits: Limits{}.withDefaults()}
	s.admission = s.newAdmission()
	for name, tenant := range map[string]string{"tenant": "acme", "none": ""} {
		b.Run(name, func(b *testing.B) {
			handler := s.admit(func(echo.Context) error { return nil })
			r := httptest.NewRequest(http.MethodPost, v1+"/jobs", nil)
			if tenant != "" {
				r.Header.Set("X-OJS-Tenant", tenant)
			}
			e := echo.New()
			b.ReportAllocs()
			for b.Loop() {
				c := e.NewContext(r, nil)
				c.SetPath(v1 + "/jobs")
				if err := handler(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
