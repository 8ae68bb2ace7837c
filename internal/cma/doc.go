// Package cma reads memory of another process (cross memory attach, process_vm_readv). The kernel
// allows it to who could trace that process.
package cma
