//! Writes measured blocks of the project's pages: `cargo run -p tests --bin numbers -- [NAME...]`. Without a name it lists
//! what there is.
//!
//! Owns the running of their commands. It must never write what a command printed that did not end well: a measurement
//! ends with 1 when one of its bounds does not hold.

use std::process::{Command, ExitCode, Stdio};

use tests::documented::{Block, PAGES, blocks, root, shown, write};

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let mut left = wanted.clone();
    for page in PAGES {
        // Tests write what they have counted by themselves.
        for block in blocks(page).into_iter().filter(|block| !block.command.contains("cargo test")) {
            if wanted.is_empty() {
                println!("{}: {}", block.name, block.command);
            } else if wanted.contains(&block.name) {
                left.retain(|name| *name != block.name);
                if let Err(words) = measure(page, &block) {
                    eprintln!("{}: {words}; {page} stays as it is", block.name);
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    if !left.is_empty() {
        eprintln!("no measurement is named {}; without a name this program lists them", left.join(", "));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs the command of a block and writes what it printed.
fn measure(page: &str, block: &Block) -> Result<(), String> {
    let mut command = Command::new("sh");
    command.args(["-c", &block.command]).current_dir(root()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| error.to_string())?;
    let printed = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    print!("{printed}");
    if !output.status.success() {
        return Err(format!("`{}` ended with {}", block.command, output.status));
    }
    write(page, &block.name, &shown(&printed));
    Ok(())
}
