package ctl

// Taken tests whether an error says that somebody was faster.
var Taken = taken
