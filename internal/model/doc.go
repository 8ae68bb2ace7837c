// Package model explores protocols of this module state by state: each reachable state of a small
// form once, to find one in which somebody sleeps beside work. It has tests only.
package model
