package udp

// OnEndpoint is the backend of a real interface.
var OnEndpoint = newOnEndpoint
