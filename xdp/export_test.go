package xdp

// ReadRecord decodes a record.
var ReadRecord = readRecord
