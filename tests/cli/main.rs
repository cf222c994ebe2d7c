//! The command line, as a user would type it, including every error.

mod commands;
mod compare;
mod documents;
mod errors;
mod help;
mod pipes;
mod support;
