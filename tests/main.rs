//! Integration tests of the whole workspace, in one binary.

mod oracle;
