//! Many runs of one scenario: over values, seeds and machines; what the answers together say.
//!
//! A [`question::Question`] names points: scenario files × swept values × seeds. [`points::Points`] runs one of
//! them, [`drive`] all, on as many threads as there are; a [`row::Row`] is what one point gives. Rows stand in
//! the order of their points, so nothing that is written depends on threads, and what was written before a
//! kill is a beginning of what is written without one ([`rows_file`]). Shards of a fleet are put together by
//! [`merge`]. [`answer`] says what the rows mean, and reads rows alone.

pub mod answer;
pub mod ask;
pub mod drive;
pub mod merge;
pub mod parquet;
pub mod points;
pub mod question;
pub mod row;
pub mod rows_file;
