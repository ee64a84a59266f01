//! How a command ends that did not do what was asked.

/// What a command returns: a message that ends the program with status 1, or 2 where the command line
/// was wrong.
pub type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A wrong command line, which ends the program with status 2.
pub fn usage(text: impl Into<String>) -> Box<dyn std::error::Error> {
    lexopt::Error::from(text.into()).into()
}
