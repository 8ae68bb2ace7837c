//go:build !linux

package mapped

import "errors"

func By(int, uint64, uint64) (is, known bool) { return false, false }

func Processes() ([]int, error) { return nil, errors.ErrUnsupported }
