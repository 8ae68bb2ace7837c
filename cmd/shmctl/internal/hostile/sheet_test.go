package hostile

import (
	"reflect"
	"testing"
)

// TestBreaches: the tables and the sum have every kind of violation.
func TestBreaches(t *testing.T) {
	var v Violations
	fields := reflect.ValueOf(&v).Elem()
	for i := range fields.NumField() {
		fields.Field(i).SetUint(1 << i)
	}
	want := uint64(1)<<fields.NumField() - 1
	var listed uint64
	for _, b := range v.breaches() {
		listed |= *b.n
	}
	if listed != want || v.sum() != want {
		t.Errorf("listed %b, added up %b, want %b", listed, v.sum(), want)
	}
	var added Violations
	if added.Add(&v); added != v {
		t.Errorf("added %+v", added)
	}
}
