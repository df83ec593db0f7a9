//! Many runs of one scenario: over values, seeds and machines; what the answers together say.
