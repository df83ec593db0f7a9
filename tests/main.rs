//! Integration tests: one module a subject.

mod oracle;
mod tidy;
