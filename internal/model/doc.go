// Package model explores protocols of this module state by state, to find a state in which somebody
// sleeps beside work, something is lost or ends twice, or nobody can go on. It has tests only:
//
//	search    visits each reachable state of a protocol once; finds the shortest run to a loss, for
//	          people, and the states from which nothing leads to rest
//	table     families of variants that lose nothing, and of mutants that must lose something;
//	          numbers of states as recorded, and testdata/guards_models.md
//	the rest  the protocols, a family each: what a state is, its steps, and what is a loss
//
// A protocol says what may happen next, in any order and with a stop for ever anywhere; its steps
// have the names that they have in the code.
package model
