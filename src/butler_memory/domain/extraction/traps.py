"""What is said and is not so: each kind of trap has a name, a pattern, and how far it reaches."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from butler_memory.domain.extraction.sentences import LEAD, QUOTED


class Reach(Enum):
    """What of an episode is not believed because of one sentence."""

    SENTENCE = auto()
    REST_OF_TURN = auto()
    REST_OF_EPISODE = auto()
    TURN = auto()  # what came before in it, too
    BEFORE = auto()  # what was said just before is taken back


@dataclass(frozen=True)
class Trap:
    name: str
    reach: Reach
    pattern: re.Pattern[str]


def _trap(name: str, reach: Reach, *patterns: str) -> Trap:
    return Trap(name, reach, re.compile("|".join(patterns), re.IGNORECASE))


_THIS_TEXT = (
    r"(?:(?:on|about|of|over) )?(?:my|this|these|his|her|their|our) (?:\w+ ){0,2}(?:sentence|phrase|paragraph|text|"
    r"opening|opener|speech|bio|intro|introduction|pitch|cover letter|letter|caption|slogan|toast|profile|draft|poem|"
    r"monologue|statement|essay|summary|resume|cv|post|reply|ad|review|lyrics|tweet|blurb|translation|version)s?\b"
)

# Where what follows is no text to work on, but what the letter is to say, or a rule for the code.
_OWN_TASK = (
    r"(?:write|draft|compose) (?!.*\b(?:from|as an?|about|cover|voice|style|poem|story)\b)[^:]*\b(?:e?-?mail|reply|"
    r"message|decline|out-of-office|invit\w+|request|complaint|one-liner|function|regex|query|formula)\b[^:]*[.!?]$|"
    r"(?:fix|convert|improve|analy[sz]e|parse|edit|rewrite) (?:this|the|my|these|our) (?:[\w-]+ ){0,2}(?:function|code|"
    r"script|module|tests?|class|query|css|regex|component|bug|makefile|pipeline|schema|build|loop|migration)\b[^:]*$"
)

# In this order: the first that matches decides.
TRAPS: tuple[Trap, ...] = (
    _trap(
        "speaks to the memory",
        Reach.TURN,
        r"\bforget (?:everything|all|what you|your)\b|\b(?:ignore|disregard|forget|"
        r"override)\b.{0,30}\b(?:above|previous|prior|earlier|instructions?|rules?)\b",
        r"\b(?:supersedes?|overrides?|takes precedence|system prompt|new instructions?)\b",
        r"\b(?:store|save|add|write|record|insert|persist|update|delete|erase)\b.{0,30}\b(?:rules?|"
        r"memory|memories|facts?)\b",
        r"\b(?:memory|consolidation|extractor|instruction) (?:note|entry|update|for)\b|^important instruction",
    ),
    _trap(
        "taken back",
        Reach.BEFORE,
        r"^(?:(?:actually|no|nah|oh|wait|sorry|ok|hmm|well|(?:ha){2,}h?|lo+l),? )*(?:scratch that|never ?mind|forget "
        r"(?:that|it|what i said)|(?:i (?:am|was) )?(?:just |only |totally )?(?:kidding|joking|messing|teasing|pulling "
        r"your|bluffing)|jk\b|ignore that|i made (?:that|it) up|that was (?:a joke|wrong)|(?:that is )?not true|well,? "
        r"no\b|i lied|nah\b|please do not\W*$|i take that back|strike that|no,? wait|wrong,)",
        r"^(?:lo+l|(?:ha){2,}h?|rofl|lmao|just kidding|jk|not|as if|yeah right|said (?:nobody|no one)(?: "
        r"ever)?)[\s!.)]*$",
        r"^(?:gotcha|psych|oops,? wrong|wrong (?:window|chat|thread|person)|nope,? not (?:really|true)|or (?:do|am|is|"
        r"does) (?:I|it|he|she)\b|in my dreams|(?:well,? )?i wish|(?:sorry,? )?i meant\b|i mean (?-i:[A-Z])\w*|"
        r"correction(?=:)|so (?:says?|said)|said (?-i:[A-Z])\w*|at least not|(?:just|only) for (?:fun|now|this|"
        r"today)|for fun|"
        r"my \w+ (?:typed|wrote) (?:that|this)|that (?:is|was) (?:autocorrect|what (?:he|she|they|her|his|my)|for my|"
        r"(?:my|her|his) \w+ (?:line|form|text)))\b",
        # "Translate that": what came before was a text.
        r"^(?:please |now |and |can you |could you )*(?:translate|proofread|rephrase|paraphrase|correct) (?:that|"
        r"it)\b[^:]*$|"
        r"^how (?:do|would|can) (?:you|I|we) say (?:that|it)\b",
        r"^[\s😂🤣😜😝😛🙃]+$|^/s$",
    ),
    _trap(
        "role play",
        Reach.REST_OF_EPISODE,
        r"\brole-? ?play|\bI will be (?:your|the|a|an) (?!back)\w+|\b(?:drill|simulation|mock interview)\b|\blet(?:'s| "
        r"us| is) (?:play|pretend|imagine)\b|\b(?:act|behave) (?:as|like) (?:a|an|the|if|my)\b",
        r"^you are (?:now |a |an |the )",
    ),
    _trap(
        "fiction or a text to work on",
        Reach.REST_OF_TURN,
        r"\b(?:in|for|from|about) (?:my|the|this|a|our) (?:\w+ )?(?:story|novel|book|game|movie|film|play|script|dream|"
        r"scenario|comic|song|campaign|example|essay|sketch|screenplay|fanfic)\b",
        r"\b(?:story|novel|film|movie|book|poem|play|joke|tale) (?:is )?(?:about|where|in which)\b",
        r"\b(?:my|the) (?:\w+ )?(?:character|hero|heroine|protagonist|narrator|villain|avatar|persona)\b|\bfictional\b",
        rf"^(?:please |can you |could you |now |help me )*(?!{_OWN_TASK})(?:translate|rewrite|rephrase|proofread|"
        r"paraphrase|summari[sz]e|spell-?check|fix|correct|draft|write|compose|repeat|complete|finish|analy[sz]e|edit|"
        r"polish|improve|convert|classify|parse|grade)\b(?!.*\b(?:user asked)\b)",
        # "What do you think of my opener?", "is this sentence correct?": what follows is the text itself.
        rf"\b(?:feedback|thoughts|opinion|rate|judge|review|check|critique|evaluate|comment|look (?:at|over)|think "
        rf"(?:of|about)|(?:how|here|what)(?: is|'s)|how do(?:es)?|what about|is|are|does|like) {_THIS_TEXT}",
        r"^(?=(?:check|mind|watch|any|how|what|is|are|does|do|can|could)\b).*\b(?:grammar|grammatical(?:ly)?|spelling|"
        r"punctuation|wording|phrasing|typos?|correct to (?:say|write))\b|"
        r"^(?:is|does|do|are) (?:this|that|these|it|the following) (?:\w+ )?(?:correct|ok|okay|fine|sound|read)\b",
        r"^(?:dear (?!butler|claude|assistant)|ladies and gentlemen|to whom it may concern|(?:hello|hi|hey|good \w+),? "
        r"(?:everyone|everybody|folks|team)\b)",
        r"\b(?:make|turn|put|get|say) (?:this|that|these) .{0,30}\b(?:sound|in|into|more|less|\w+er)\b|\bwrong here\b|"
        r"\b(?:which|what) (?:\w+ )?(?:is|are) (?:the )?(?:better|correct|right|wrong|mistakes?|errors?)\W*$|"
        r"\bnative\b.* say\b",
        r"\b(?:homework|exercise \d|lesson(?: \d+)?(?=:)|riddles?|charades|guess (?:who|which|the)|two truths|never "
        r"have I ever|alter ego|(?:first|last|opening|closing) (?:line|sentence)s?|(?:writing|speaking|answer\w*) as|"
        r"on \w+ behalf|you are me|captions?|slogan|tagline|hashtags?|tattoo|limerick|haiku)\b",
        r"\b(?:example|sample|test) (?:sentence|text|message|input|user|data)\b|\bpretend\b|\bhow do you say\b",
        # What a heading announces is somebody's text, unless it announces the user.
        r"^(?!.*\b(?:me|my|I|rules?|preferences?|know|remember|facts?|notes?|learned|user|summary)\b).*:$",
        r"^\W*(?:please )?(?:reply|answer|respond|type|say|sing|print|tell|text|send|post|put|enter|"
        r"fill|sign)\b[^:]{0,40}:",
        r"\b(?:below|following)\W*$|\bwhat \w+(?: \w+)? (?:wrote|said|sent|posted|says|writes)\b",
        r"\b(?:says?|said|wrote|writes?|texted|read|reads|following|below|text|message|lyrics|poem|quote|review|bio|"
        r"article|page|tweet|post|transcript|letter|email|e-mail|paragraph|sentence|snippet|statement)\W{0,3}:\W*$",
    ),
    _trap(
        "joke",
        Reach.SENTENCE,
        r"\b(?:lo+l|lmao|rofl|(?:ha){2,}h?|hehe|jk|just kidding|joking|yeah right|as if|oh sure|call me crazy|sure,? "
        r"because|trust me|dammit|damn it|cannot lie|messing with you|pulling your leg|april fools?|said (?:nobody|"
        r"no one)|killed my father)\b|\.\.\. ?not\b",
        r"[😂🤣😜😝😛🙃😉]|(?:^|\s)(?:/s|:P|;-?\)|:-?D|xD)(?:$|\W)",
    ),
    _trap(
        "secret",
        Reach.SENTENCE,
        r"\b(?:password|passcode|passphrase|pin|api key|secret|token|credit card|debit card|iban|account number|"
        r"passport (?:number|no\b|is)|social security|ssn|licen[cs]e number|(?:phone|mobile|cell) (?:number|is)|cvv|"
        r"private key|login|credentials?)\b",
        r"(?<!\d)(?!\d{4}-\d\d-\d\d)\d[\d\s().-]{6,}\d",
        r"\bsk-\w|\S@\S|://",
    ),
    _trap(
        "hypothetical",
        Reach.SENTENCE,
        r"^(?:(?:so|and|but|ok|well|now),? )*(?:imagine|suppose|assum(?:e|ing)|say I|say my|picture|what if|supposing|"
        r"if only|as if|let us say|let is say|let me say|in case|unless|provided|for the sake of|hypothetically|"
        r"theoretically)\b",
        r"\b(?:hypothetical(?:ly)?|if I were|if he were|if she were|as though|wish|wishes|would have|supposedly|or "
        r"so \w+|on paper|he wrote|she wrote|in "
        r"theory|allegedly|for the sake of argument|in another life|let us say|one day I will)\b",
    ),
    _trap(
        "perhaps",
        Reach.SENTENCE,
        r"\b(?:maybe|perhaps|might|possibly|could be|not sure|unsure|apparently|i wonder|seems? to|appears? to|"
        r"who knows|no idea(?! (?:about|of)\b)|i guess|i suppose|not certain|likely|may be|rumou?r)\b",
    ),
    _trap(
        "past",
        Reach.SENTENCE,
        r"\b(?:used to|back then|when (?:I|he|she|we|they) (?:was|were)|as a (?:child|kid|teenager|boy|girl|student)|"
        r"years ago|in the past|formerly|previously|back when|no longer|any ?more|at the time|until (?:last|recently)|"
        r"in my (?:youth|twenties|childhood)|growing up|my late|stopped|once upon)\b",
    ),
    _trap(
        "quote",
        Reach.SENTENCE,
        QUOTED,
        r"\b(?!(?:PS|FYI|BTW|Also|Important|Background|Context)\b)(?-i:[A-Z])\w*: (?:I|my|we)\b",
        r"[,.!] (?:said|says|joked|replied|quipped|laughed|shouted) \w",
    ),
)

_QUESTION_OPENS = re.compile(
    r"^(?:(?:so|and|but|ok|hey|hi|well|also),? )*(?:(?:do|does|did|can|could|would|will|should|is|are|am|was|were|have|"
    r"has|may|shall|might)(?: not)? (?:I|you|he|she|it|we|they|there|the user|my|your|this|that|anyone)\b|(?:what|who|"
    r"whom|whose|where|why|how|which|when (?:do|does|did|is|are|will|was|should|can))\b)",
    re.IGNORECASE,
)
_QUESTION_TAIL = re.compile(
    r"[,;:.—–-]\s*(?:and |so |but )?(?=(?:can|could|would|will|should|what|which|who|where|how|why|when|is|are|do|does|"
    r"did|any)\b)[^,;]*(?:,[^,;]*)?\?$",
    re.IGNORECASE,
)
_TAG_QUESTION = re.compile(
    r"^\W*(?:do|does|did|am|is|are|have|has|was|will)(?: not)? (?:I|you|he|she|it|we|they)(?: not)?\W*$", re.IGNORECASE
)


def trap_in(sentence: str) -> Trap | None:
    """Also behind "by the way,": what it opens with may hide how a sentence begins."""
    said = {sentence, LEAD.sub("", sentence)}
    return next((trap for trap in TRAPS if any(map(trap.pattern.search, said))), None)


def stated_part(sentence: str) -> str:
    """The sentence; what stands before its question; nothing where all of it asks."""
    if _QUESTION_OPENS.match(sentence):
        return ""
    if not sentence.rstrip(" !)\"'").endswith("?"):
        return sentence
    tail = _QUESTION_TAIL.search(sentence)
    if tail is None or _TAG_QUESTION.match(tail[0].strip(" ,;:.—–-?")):
        return ""
    return sentence[: tail.start()]


# Within a clause: what is true only under a condition, or only for a while.
CONDITION = re.compile(
    r"^(?:if|unless|when|whenever|in case|as (?:far|long) as|once|until|even if|whether)\b|\b(?:if|unless|whether)\b",
    re.I,
)
MOMENTARY = re.compile(
    r"\b(?:today|tonight|right now|at the moment|(?:in|for|on|at) this|here|until|till|for another|this (?:morning|"
    r"evening|afternoon|week|time)|for now|temporarily|just this once)\b",
    re.IGNORECASE,
)
