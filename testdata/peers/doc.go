// Package peers runs programs of others, unchanged, over package udp against sockets of the kernel:
// quic-go, miekg/dns and the tests of golang.org/x/net/nettest; and over connections of package
// fabric: those tests, net/http and grpc-go. It is a module of its own, so that nobody who uses the
// library has to load them.
package peers
