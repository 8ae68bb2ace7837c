package capture

import "errors"

// ErrBusy says that another tool captures the endpoint.
var ErrBusy = errors.New("capture: another tool captures this endpoint; wait for it, or end it")
