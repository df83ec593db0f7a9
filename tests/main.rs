//! Integration tests: one module a subject.

#[cfg(test)]
mod oracle;
