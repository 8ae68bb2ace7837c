// Package device is a device process for many applications.
package device
