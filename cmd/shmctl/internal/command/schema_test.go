package command

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/shmring/shmring/cmd/shmctl/internal/hostile"
	"github.com/shmring/shmring/cmd/shmctl/internal/soak"
	"github.com/shmring/shmring/cmd/shmctl/internal/torture"
	"github.com/shmring/shmring/ctl"
	"github.com/shmring/shmring/testdata"
)

// TestSchemaKeys compares the keys of the structs with those that the schema demands: an object
// with keys that the schema does not name would pass it.
func TestSchemaKeys(t *testing.T) {
	var doc struct {
		Defs map[string]struct {
			Required   []string
			Properties map[string]any
		} `json:"$defs"`
	}
	must(t, json.Unmarshal(testdata.Schema, &doc))
	for def, v := range map[string]any{"queue": ctl.Queue{}, "lane": ctl.Lane{},
		"process": ctl.Process{}, "bell": ctl.Bell{}, "rates": ctl.Rates{},
		"problem": ctl.Problem{}, "version": versionInfo{}, "tail": ctl.Tail{},
		"object": ctl.Object{}, "counter": ctl.Counter{}, "counterHandle": ctl.CounterHandle{},
		"addresses": ctl.Addresses{}, "domain": ctl.Domain{},
		"laneTail": ctl.LaneTail{}, "entry": ctl.Entry{}, "failure": ctl.Failure{},
		"event": ctl.Event{}, "fid": ctl.FID{},
		"endpoint": endpointInfo{}, "queueRef": queueRef{}, "probe": probeResult{},
		"finding": findingResult{}, "capture": captureResult{},
		"post": postResult{}, "signal": signalResult{}, "serve": serveStatus{},
		"serveApp": serveApp{}, "torture": torture.Report{},
		"tortureRole": torture.RoleReport{}, "tortureMachine": torture.Machine{},
		"notice": torture.Notice{}, "duties": torture.Duties{}, "hostile": hostile.Report{},
		"hostileSurface": hostile.Surface{}, "hostileViolations": hostile.Violations{},
		"gc": gcResult{}, "remains": ctl.Remains{},
		"check": ctl.CheckReport{}, "violation": ctl.Finding{},
		"soak": soak.Report{}, "soakFaults": soak.Faults{}, "soakRound": soak.Round{}} {
		d := doc.Defs[def]
		want := keysOf(t, reflect.TypeOf(v))
		slices.Sort(want)
		got := slices.Sorted(slices.Values(d.Required))
		if !slices.Equal(got, want) {
			t.Errorf("%s: schema requires %v, struct has %v", def, got, want)
		}
		for _, key := range want {
			if d.Properties[key] == nil {
				t.Errorf("%s: schema does not describe %q", def, key)
			}
		}
	}
}

func keysOf(t *testing.T, s reflect.Type) []string {
	var keys []string
	for f := range s.Fields() {
		if f.Anonymous {
			keys = append(keys, keysOf(t, f.Type)...)
			continue
		}
		key := jsonKey(f)
		if f.Tag.Get("json") == "-" || !f.IsExported() {
			continue
		}
		if key == "" || strings.Contains(f.Tag.Get("json"), "omit") {
			t.Errorf("%v.%s: every key is printed, under a name", s, f.Name)
		}
		keys = append(keys, key)
	}
	return keys
}

func TestSchemaRefuses(t *testing.T) {
	s := schema(t)
	for _, text := range []string{`{}`, `{"schema":"shmctl/1"}`, `{"schema":"shmctl/2","queues":[]}`,
		`{"schema":"shmctl/1","queues":[{"name":"a"}]}`, `{"schema":"shmctl/1","error":{"code":0}}`,
		`{"schema":"shmctl/1","bench":{}}`,
		`{"schema":"shmctl/1","tail":{"queue":"a"}}`, `{"schema":"shmctl/1","post":{"queue":"a"}}`,
		`{"schema":"shmctl/1","signal":{}}`, `{"schema":"shmctl/1","torture":{"seed":1}}`,
		`{"schema":"shmctl/1","gc":{"remains":[]}}`, `{"schema":"shmctl/1","check":{}}`} {
		var v any
		must(t, json.Unmarshal([]byte(text), &v))
		if s.Validate(v) == nil {
			t.Errorf("%s passes", text)
		}
	}
}
