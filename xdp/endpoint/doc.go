// Package endpoint is a datagram endpoint on an AF_XDP socket that reports to completion queues: the
// fabric's FI_EP_DGRAM over UDP.
package endpoint
