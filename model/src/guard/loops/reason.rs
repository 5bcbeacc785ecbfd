//! The sentence with which a blocked call answers the model: which detector found what, how often, and what the model
//! may do instead.

use super::detect::Detector;

/// Why a call of `tool` is blocked. `unknown` is the missing tool's name, where that is what repeated and it
/// is known.
pub fn reason(detector: Detector, tool: &str, count: u32, unknown: Option<&str>) -> String {
    format!("Blocked ({}): {}", detector.name(), sentence(detector, tool, count, unknown))
}

fn sentence(detector: Detector, tool: &str, count: u32, unknown: Option<&str>) -> String {
    match detector {
        Detector::UnknownToolRepeat => {
            let missing = unknown.map_or_else(|| "a tool".to_owned(), |name| format!("the tool `{name}`"));
            format!(
                "{missing} that does not exist was asked for {count} times in a row (last \
                 through `{tool}`). Use one of the tools on offer, or answer without it."
            )
        }
        Detector::GlobalCircuitBreaker => format!(
            "`{tool}` came to the same result {count} times without any progress. This limit \
             holds for every tool; say what you have found, or ask how to go on."
        ),
        Detector::KnownPollNoProgress => format!(
            "`{tool}` was asked for the same {count} times and the answer never changed. What it \
             waits for does not seem to move: end it, look at something else, or report where it stands."
        ),
        Detector::PingPong => format!(
            "{count} calls in a row only went back and forth between two actions, `{tool}` being \
             one of them, with the same results each time. Take a step that is neither of the two, or \
             answer with what you have."
        ),
        Detector::GenericRepeat => format!(
            "`{tool}` came to the same outcome {count} times. Doing it again will not change \
             that: try other arguments or another tool, or answer with what you have."
        ),
        Detector::ArgumentChurn => format!(
            "{count} calls of `{tool}` went around a few variants of arguments and all failed \
             alike. Find the cause of the failure first, or use another tool."
        ),
        Detector::BlockedRepeat => format!(
            "this call of `{tool}` was already blocked ({}) and came again unchanged. Do \
             something else, or answer without it.",
            times(count)
        ),
        Detector::LoopAdmissionFailure => format!(
            "whether `{tool}` is going in circles could not be checked, so it was not run. Try a \
             simpler call, or answer without it."
        ),
    }
}

fn times(count: u32) -> String {
    if count == 1 { "once".to_owned() } else { format!("{count} times") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Detector; 8] = [
        Detector::UnknownToolRepeat,
        Detector::GlobalCircuitBreaker,
        Detector::KnownPollNoProgress,
        Detector::PingPong,
        Detector::GenericRepeat,
        Detector::ArgumentChurn,
        Detector::BlockedRepeat,
        Detector::LoopAdmissionFailure,
    ];

    #[test]
    fn every_reason_names_the_tool_and_how_often() {
        for detector in ALL {
            let text = reason(detector, "bash", 27, Some("frob"));
            let blocked = format!("Blocked ({}): ", detector.name());
            assert!(text.starts_with(&blocked) && text.contains("`bash`"), "{text}");
            assert_eq!(text.contains("27"), detector != Detector::LoopAdmissionFailure, "{text}");
            assert_eq!(text.contains("`frob`"), detector == Detector::UnknownToolRepeat, "{text}");
            assert!(text.ends_with('.') && !text.contains("  "), "{text}");
        }
    }

    #[test]
    fn a_missing_tool_may_be_unnamed() {
        assert_eq!(
            reason(Detector::UnknownToolRepeat, "call", 10, None),
            "Blocked (unknown_tool_repeat): a tool that does not exist was asked for 10 times in a row (last through `call`). \
             Use one of the tools on offer, or answer without it."
        );
    }
}
