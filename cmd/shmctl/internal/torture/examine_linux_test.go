package torture

import (
	"os"
	"testing"
	"time"

	"github.com/shmring/shmring/cq"
	"github.com/shmring/shmring/internal/crash"
	"github.com/shmring/shmring/shm"
)

// TestExamine: an object that breaks an invariant after a death at a step is found, and none that
// does not; and the supervisor does little else but that.
func TestExamine(t *testing.T) {
	r := &role{name: "writer"}
	base, err := os.MkdirTemp(os.Getenv(shm.EnvDir), "examine")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(base)
	s := &supervisor{base: base, roles: []*role{r}, report: newReport(Options{},
		[]*role{r}), found: map[string]Found{}}
	d, err := shm.OpenDir(s.base + "/" + queuesDir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	q, err := cq.Create(d, "q", cq.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	p := &proc{role: r, step: crash.AttachClaimed}
	if s.examine(p); s.report.Checked == 0 || s.found["writer"].Broken != 0 {
		t.Fatalf("%d objects checked: %v", s.report.Checked, s.report.Violations)
	}
	if !s.examined.After(time.Now()) {
		t.Error("it looks again at once")
	}
	f, err := os.OpenFile(d.Path()+"/q/reader", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{0xff}, 4080); err != nil { // of the header, which says it is 0
		t.Fatal(err)
	}
	for _, quiet := range []*proc{{role: r}, {role: r, step: p.step, shot: true}} {
		s.examined = time.Time{}
		if s.examine(quiet); s.found["writer"].Broken != 0 {
			t.Errorf("it looked after %+v", quiet)
		}
	}
	if s.examine(p); s.found["writer"].Broken == 0 {
		t.Error("nothing was found")
	}
}
