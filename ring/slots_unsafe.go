package ring

import (
	"fmt"
	"reflect"
	"unsafe"
)

// Slots lays a slice of T over mem, which must hold a whole number of them, aligned. T must be
// plain data of fixed layout: no pointers, no int, uint or uintptr, whose width differs between
// programs. The result's length and capacity are len(mem)/sizeof(T).
func Slots[T any](mem []byte) ([]T, error) {
	t := reflect.TypeFor[T]()
	if err := plain(t); err != nil {
		return nil, err
	}
	size := int(t.Size())
	if size == 0 || len(mem) == 0 || len(mem)%size != 0 {
		return nil, fmt.Errorf("ring: %d bytes are not a whole number of %s (%d bytes each)",
			len(mem), t, size)
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(p)%uintptr(t.Align()) != 0 {
		return nil, fmt.Errorf("ring: memory for %s is not aligned to %d bytes", t, t.Align())
	}
	return unsafe.Slice((*T)(p), len(mem)/size), nil
}

// IndexAt returns the index word at byte offset off of mem.
func IndexAt(mem []byte, off uint64) (*Index, error) {
	if off%8 != 0 || uint64(len(mem)) < 8 || off > uint64(len(mem))-8 {
		return nil, fmt.Errorf("ring: no index word at offset %d of %d bytes", off, len(mem))
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(p)%8 != 0 {
		return nil, fmt.Errorf("ring: memory for an index word is not aligned to 8 bytes")
	}
	return (*Index)(unsafe.Add(p, off)), nil
}

// plain reports whether values of t mean the same in every process.
func plain(t reflect.Type) error {
	switch t.Kind() {
	case reflect.Bool, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64, reflect.Uint8,
		reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64:
		return nil
	case reflect.Array:
		return plain(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			if err := plain(t.Field(i).Type); err != nil {
				return fmt.Errorf("%w (field %s of %s)", err, t.Field(i).Name, t)
			}
		}
		return nil
	}
	return fmt.Errorf("ring: %s cannot be shared between processes", t)
}
