package block

import (
	"encoding/binary"
	"errors"
	"fmt"

	"lukechampine.com/blake3"
)

// Tags of the fields of a scope record.
const (
	tagScheme = iota
	tagModel
	tagRevision
	tagAdapter
	tagTenant
	tagGroup
	tagUnit
)

// unitBytes is the content of the unit field for chains of bytes.
const unitBytes = "bytes"

// appendField appends one tagged, length-prefixed field, or nothing when the
// content is empty: absent and empty are the same.
func appendField(dst []byte, tag byte, content string) []byte {
	if content == "" {
		return dst
	}
	dst = append(dst, tag)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(content)))
	return append(dst, content...)
}

// appendRecord appends the canonical scope record.
func (s *Scope) appendRecord(dst []byte, unit string) []byte {
	dst = appendField(dst, tagScheme, string(SchemeBLAKE3))
	dst = appendField(dst, tagModel, s.Model)
	dst = appendField(dst, tagRevision, s.Revision)
	dst = appendField(dst, tagAdapter, s.Adapter)
	dst = appendField(dst, tagTenant, s.Tenant)
	dst = appendField(dst, tagGroup, s.Group)
	return appendField(dst, tagUnit, unit)
}

// root is the digest of the scope record.
func (s *Scope) root(unit string) Key { return blake3.Sum256(s.appendRecord(nil, unit)) }

// validate reports every field that the scheme cannot take.
func (s *Scope) validate(scheme Scheme) error {
	var errs []error
	for _, f := range [...]struct {
		name, value string
		dynamo      bool
	}{
		{"Model", s.Model, true},
		{"Revision", s.Revision, true},
		{"Adapter", s.Adapter, false},
		{"Tenant", s.Tenant, false},
		{"Group", s.Group, false},
	} {
		if len(f.value) > MaxField {
			errs = append(errs, fmt.Errorf("%w: %s has %d bytes, at most %d", ErrScope, f.name, len(f.value), MaxField))
		}
		if scheme == SchemeDynamo && !f.dynamo && f.value != "" {
			errs = append(errs, fmt.Errorf("%w: scheme %s has no %s", ErrScope, scheme, f.name))
		}
	}
	return errors.Join(errs...)
}
