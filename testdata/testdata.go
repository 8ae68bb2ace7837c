// Package testdata embeds what tests and the bench command need beside Go code: the C programs
// that shmring is measured against and the schema of what shmctl prints.
package testdata

import "embed"

// Rivals holds the C sources under rivals/, compiled at run time where there is a compiler.
//
//go:embed rivals/*.c rivals/*.h
var Rivals embed.FS

// Schema is the JSON Schema (draft 2020-12) of everything that shmctl prints with -o json.
//
//go:embed schema/shmctl-1.json
var Schema []byte
