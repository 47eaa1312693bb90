"""The closed lists of words that the patterns share. What is in no list is not understood, and so not taken."""

from __future__ import annotations

import re


def any_of(words: str, *phrases: str) -> str:
    """One group that matches any of these, the longest first. Where a word has underscores, it is several."""
    every = {*(word.replace("_", " ") for word in words.split()), *phrases}
    return "(?:" + "|".join(sorted((re.escape(w) for w in every), key=lambda w: (-len(w), w))) + ")"


# What a relative is called -> the predicate for it.
KIN: dict[str, str] = {
    **dict.fromkeys(("wife", "husband", "spouse"), "spouse"),
    **dict.fromkeys(("partner", "girlfriend", "boyfriend", "fiancé", "fiancée", "fiance", "fiancee"), "partner"),
    **dict.fromkeys(("son", "daughter", "child", "kid", "stepson", "stepdaughter"), "child"),
    **dict.fromkeys(("sons", "daughters", "children", "kids", "boys", "girls"), "child"),
    **dict.fromkeys(("brother", "sister", "twin", "siblings", "brothers", "sisters"), "sibling"),
    **dict.fromkeys(("mother", "father", "mom", "mum", "dad", "mam", "papa", "stepmother", "stepfather"), "parent"),
    **dict.fromkeys(("grandmother", "grandfather", "grandma", "grandpa", "aunt", "uncle", "cousin"), "relative"),
    **dict.fromkeys(("nephew", "niece", "grandson", "granddaughter", "granny", "grandad", "auntie"), "relative"),
    **dict.fromkeys(("friend", "best friend", "roommate", "flatmate", "housemate", "best mate"), "friend"),
    **dict.fromkeys(("boss", "manager", "colleague", "coworker", "co-worker", "assistant"), "colleague"),
}
KIN_WORD = rf"(?:(?:(?:old|eld|young)(?:er|est)|little|big|twin|late) )?(?P<kin>{any_of('', *KIN)})(?! tongue)"
PET = any_of(
    "dog cat puppy kitten parrot hamster rabbit horse turtle tortoise goldfish ferret budgie canary snake labrador "
    "poodle beagle dachshund corgi bulldog terrier retriever shepherd whippet greyhound pug collie spaniel chihuahua "
    "husky cockatiel parakeet gecko iguana donkey goat pony cockapoo labradoodle dalmatian alpaca rooster hen "
    "bearded_dragon great_dane jack_russell guinea_pig golden_retriever labrador_retriever german_shepherd "
    "border_collie cocker_spaniel french_bulldog maine_coon siamese_cat persian_cat"
)
PETS = any_of(
    "dogs cats puppies kittens parrots hamsters rabbits horses turtles goldfish chickens budgies bees ducks goats "
    "ponies tortoises hens gerbils donkeys sheep alpacas finches labradors huskies greyhounds guinea_pigs"
)
PET_LOOKS = any_of(
    "old young little small big large black white brown grey gray ginger tabby rescue lazy elderly pet house lovely "
    "sweet fluffy new senior spotted blind deaf crazy cute beautiful wonderful"
)
COUNT = any_of("two three four five six seven 2 3 4 5 6 7")

# A name: capitalised words, with the small words that join them. "Acme", "Red Cross", "Frankfurt am Main".
_CAPITAL = r"[^\W\d_a-zà-öø-ÿ][\w'’.&+-]*"
PROPER = (
    rf"(?:{_CAPITAL}(?: (?:(?:de|of|the|la|le|du|des|am|upon|sur|del|van|der|di|da|&) )?(?:{_CAPITAL}|\d+)){{0,4}})"
)
# A person's: two titles that end in a dot, no numbers.
PERSON = rf"(?:(?:Dr|Mr|Mrs|Ms|Prof)\. )?{_CAPITAL}(?: (?:(?:de|van|von|der|da|di|del|la|bin|al) )?{_CAPITAL}){{0,3}}"
# What people say that they live in, or are married to.
_TOOLS = (  # and what they use
    "Excel Word Outlook Gmail Slack Teams Zoom Jira Notion Figma Photoshop Chrome Firefox Safari Edge Vim Emacs VS "
    "Terminal Windows Linux Ubuntu Debian Fedora MacOS Android iOS Spotify Netflix Discord Telegram WhatsApp "
    "Signal Twitter Bluesky Mastodon GitHub GitLab AWS Azure Kubernetes Docker Postgres TypeScript JavaScript "
    "Dropbox Obsidian Evernote Todoist Trello Asana Fastmail Proton"
)
TOOL = any_of(_TOOLS) + r"(?!\w)"
TOOL_IN_SMALL = any_of("vim neovim nvim emacs zsh bash fish tmux vscode linux firefox chrome docker pnpm yarn npm")
SYSTEM = "(?:[Ww]indows|[Mm]acOS|macos|[Ll]inux|[Uu]buntu|[Dd]ebian|[Ff]edora|Arch(?: Linux)?|NixOS|Android|iOS)"
FAITH = "(?:[Mm]uslim|[Jj]ewish|[Hh]indu|[Bb]uddhist|[Cc]atholic|Protestant|Sikh|Quaker|Mormon|atheist|agnostic)"
NOT_A_HOME = re.compile(
    any_of(
        f"{_TOOLS} Python Java Google Apple Flat Apartment Apt Room Building Block Unit Dorm House Marketing Sales HR "
        "Finance Accounting Engineering Management Legal Support Plan Team Version Option Step Spring Summer Autumn "
        "Winter Narnia Neverland Wonderland Hogwarts Mordor Gotham Atlantis Mars Venus Buckingham Denial Limbo "
        "Paradise Purgatory Utopia La_La"
    )
    + r"(?!\w)"
)
NOT_A_PERSON = re.compile(
    any_of(
        f"{_TOOLS} Dad Daddy Mom Mommy Mum Mummy Grandma Grandpa Granny Coffee Tea Wine Beer Chocolate Music Silence "
        "Sleep Time Money Love Justice Fortune Fate Luck Nature Pizza Bread Tofu ASAP Ishmael Einstein Sherlock Legion "
        "Mud Test I You He She It We They This That These Those There Here The A An My Your His Her Our Their Its And "
        "But Or So If When While Who What Where Why How Yes No Not Now Then Today Tomorrow Yesterday Tonight Please "
        "Thanks Also Everyone Everybody Someone Somebody Nobody Anyone People Users User Most Many Some All Each Every "
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday January February March April May June July August "
        "September October November December Python Java Google Apple Siri Alexa Claude ChatGPT Nothing Everything "
        "Life Later Maybe Back Again Sorry Hello Hi Hey Great Good Only Just Never Always Nope Imagine Suppose Assume "
        "Batman God Jesus Santa London Paris Rome Berlin Home Work School Work"
    )
    + r"(?!\w)"
)
# Labels that look like a speaker's name at the start of a line, and are none.
NOT_A_SPEAKER = frozenset(
    (
        "example question answer title author name names lyrics chorus verse quote review bio abstract caption "
        "character narrator subject object date time place location address home job employer allergies allergy diet "
        "likes dislikes hobbies goal goals plan plans todo task tasks rule rules warning important tip step status "
        "reason ingredients method total price email phone url link source sources translation english french german "
        "spanish story poem scene setting prompt instruction instructions input first second third also update ps re "
        "fwd cc to dear said says wrote user users from sent story dialogue act topic keywords tags type id version "
        "memory memories fact facts reminder"
    ).split()
)

DIET = any_of(
    "vegetarian vegan pescatarian flexitarian gluten-free dairy-free lactose-free teetotal lactose-intolerant "
    "gluten_free dairy_free lactose_intolerant gluten_intolerant"
)
DIET_STYLE = any_of(
    "halal kosher gluten-free dairy-free sugar-free keto paleo low-carb low-sodium low-fodmap low-FODMAP plant-based "
    "vegetarian vegan mediterranean lactose-free gluten_free dairy_free low_carb plant_based"
)
FOOD = any_of(
    "meat pork beef fish dairy gluten eggs seafood shellfish nuts peanuts sugar chicken lamb wheat soy bread cheese "
    "alcohol caffeine onions garlic mushrooms tofu veal bacon honey gelatin poultry grapefruit cilantro coriander "
    "olives celery tomatoes rice pasta potatoes milk yoghurt yogurt duck liver tuna salmon shrimp prawns chocolate "
    "coffee soda wine beer anchovies eggplant peppers beans lentils red_meat raw_fish animal_products spicy_food"
)
_ALLERGENS = any_of(
    "peanut nut walnut hazelnut cashew almond pistachio pecan macadamia sesame soy soya wheat gluten dairy milk "
    "lactose cheese egg fish shellfish seafood shrimp prawn crab lobster mussel oyster clam squid tuna salmon kiwi "
    "mango banana apple peach cherry cherries tomato avocado pineapple orange citrus grape grapefruit melon celery "
    "carrot garlic onion mustard lupin corn chickpea lentil pea bean mushroom cinnamon coconut chocolate honey yeast "
    "sulfite sulphite MSG alcohol wine beer caffeine pollen ragweed grass birch dust mite mold mould cat dog horse "
    "rabbit hamster bird feather fur dander bee wasp hornet ant mosquito sting bite venom latex nickel wool lanolin "
    "rubber cotton polyester metal cobalt perfume fragrance chlorine detergent sunscreen aspirin ibuprofen "
    "paracetamol acetaminophen codeine morphine naproxen sulfa iodine lidocaine novocaine insulin antibiotic "
    "adhesive bleach flower lily lilies tree pepper paprika potato pork beef chicken meat rice oat rye barley "
    "buckwheat seed sunflower down hay sunlight cilantro coriander parsley basil vanilla kiwifruit fig plum apricot "
    "pear eggplant aubergine spinach turmeric saffron ginger cockroach goat sheep silicone formaldehyde anesthetic "
    "anaesthetic NSAID statin vaccine linen pine cedar fruit sulfa_drug guinea_pig contrast_dye hair_dye"
)
ALLERGEN = (
    rf"(?i:(?:[\w'-]+ ){{0,2}}(?:{_ALLERGENS}(?:e?s)?|[a-z]*berr(?:y|ies)|"
    r"[a-z]+(?:cillin|mycin|floxacin|cycline|sporin|oxazole)))"
)
BEING_ILL = any_of(
    "diabetic asthmatic epileptic celiac coeliac deaf dyslexic autistic blind anemic anaemic hypertensive colorblind "
    "color-blind colour-blind colourblind bipolar prediabetic haemophiliac hemophiliac neurodivergent dyspraxic "
    "immunocompromised color_blind colour_blind hard_of_hearing visually_impaired hearing_impaired partially_sighted"
)
ILLNESS = (
    r"(?:(?:mild|severe|chronic|seasonal|type \d|stage \d|high|low|irritable|multiple|rheumatoid|an? ) ?){0,3}(?:"
    + any_of(
        "diabetes asthma adhd ADHD ADD OCD PTSD IBS COPD HIV MS epilepsy migraines migraine eczema psoriasis "
        "arthritis hypertension hypothyroidism hyperthyroidism dyslexia autism anemia anaemia tinnitus insomnia "
        "depression anxiety scoliosis lupus endometriosis gout glaucoma osteoporosis fibromyalgia narcolepsy vertigo "
        "sciatica GERD PCOS rosacea osteoarthritis tendinitis tendonitis neuropathy haemophilia hemophilia "
        "arrhythmia POTS cataracts prediabetes dyscalculia vitiligo CFS CPTSD Crohn's Parkinson's Alzheimer's "
        "Hashimoto's Raynaud's Tourette's celiac coeliac sclerosis hay_fever blood_pressure sleep_apnea sleep_apnoea "
        "bowel_syndrome acid_reflux heart_murmur ulcerative_colitis atrial_fibrillation cerebral_palsy "
        "heart_condition slipped_disc herniated_disc chronic_pain long_COVID bad_back high_cholesterol"
    )
    # Those with a name: there are also an "impostor syndrome" and a "shiny object syndrome".
    + r"|[A-Z][\w-]+'s? (?:disease|syndrome)|(?:celiac|coeliac|heart|kidney|liver|lung|thyroid|Lyme|Graves|autoimmune|"
    r"inflammatory bowel) disease|(?:bipolar|anxiety|panic|eating|sleep|seizure|bleeding|attention deficit|personality|"
    r"thyroid) disorder|(?:carpal tunnel|restless legs?|polycystic ovary|chronic fatigue|Down|Marfan|Tourette) "
    r"syndrome)"
)
MEDICINE = (
    r"(?:\d+ ?(?:mg|mcg|µg|ml) (?:of )?[\w-]+|"
    + any_of(
        "metformin insulin lisinopril ibuprofen aspirin levothyroxine atorvastatin sertraline fluoxetine citalopram "
        "escitalopram omeprazole warfarin prednisone antihistamines antidepressants statins ritalin adderall "
        "ventolin salbutamol albuterol methotrexate amlodipine losartan lithium xanax prozac zoloft melatonin "
        "antihistamine antidepressant lamotrigine tamoxifen gabapentin pregabalin montelukast cetirizine semaglutide "
        "Eliquis Ozempic Wegovy Lipitor Ventolin beta_blockers blood_thinners birth_control vitamin_D vitamin_B12"
    )
    + r"|[a-z]{3,}(?:triptan|pril|sartan|statin|olol|prazole|cillin|mycin|azepam|azolam|formin|gliptin|oxetine|profen|"
    r"thyroxine|sone|mab|parin|setron|tidine|dipine|xaban|gliflozin|glutide|triptyline|lukast))(?: \d+ ?(?:mg|mcg))?"
)
LANGUAGE = any_of(
    "English French German Spanish Portuguese Italian Dutch Swedish Norwegian Danish Finnish Polish Czech Slovak "
    "Greek Turkish Russian Ukrainian Arabic Hebrew Hindi Urdu Bengali Tamil Persian Farsi Chinese Mandarin Cantonese "
    "Japanese Korean Vietnamese Thai Indonesian Malay Tagalog Swahili Catalan Basque Romanian Hungarian Bulgarian "
    "Serbian Croatian Irish Welsh Esperanto Afrikaans Albanian Estonian Latvian Lithuanian Slovene Punjabi Gujarati "
    "Marathi Icelandic Georgian Nepali Kurdish Latin sign_language"
)
NATIONALITY = any_of(
    "American British English Scottish Welsh Irish French German Spanish Portuguese Italian Dutch Belgian Swiss "
    "Austrian Swedish Norwegian Danish Finnish Polish Czech Greek Turkish Russian Ukrainian Egyptian Moroccan "
    "Israeli Indian Pakistani Chinese Japanese Korean Vietnamese Thai Indonesian Filipino Australian Canadian "
    "Mexican Brazilian Argentinian Colombian Chilean Peruvian Nigerian Ghanaian Kenyan Ethiopian Iranian Romanian "
    "Hungarian Bulgarian Serbian Croatian Icelandic Estonian Latvian Lithuanian Slovak Slovenian Bosnian Albanian "
    "Georgian Armenian Lebanese Syrian Tunisian Algerian Senegalese Tanzanian Ugandan Malaysian Singaporean "
    "Taiwanese Cuban Venezuelan Ecuadorian Bolivian Uruguayan Jamaican Maltese Cypriot Nepali South_African "
    "Sri_Lankan New_Zealander"
)
# The last word of what somebody is by trade; up to three words may stand before it.
_TRADES = any_of(
    "engineer developer programmer teacher nurse doctor lawyer judge accountant analyst architect artist chef cook "
    "dentist designer director driver economist editor carpenter plumber farmer firefighter journalist librarian "
    "manager mechanic midwife paramedic pharmacist physicist pilot policeman professor researcher scientist chemist "
    "surgeon translator veterinarian vet waiter waitress writer consultant freelancer student baker barista "
    "bartender tailor gardener postman secretary salesperson recruiter lecturer tutor actuary beekeeper bookkeeper "
    "painter sculptor actor actress singer violinist pianist composer soldier sailor cop detective historian "
    "linguist philosopher florist welder roofer miner butcher brewer surveyor notary paralegal optometrist dietitian "
    "nutritionist stonemason glazier jeweller watchmaker luthier fisherman forester zookeeper botanist astronomer "
    "copywriter proofreader illustrator animator curator cashier clerk receptionist caretaker janitor cleaner "
    "courier concierge sommelier hairdresser barber machinist administrator coordinator underwriter auditor broker "
    "banker realtor interpreter diplomat priest pastor rabbi referee barrister solicitor postdoc bricklayer "
    "headteacher dev sysadmin instructor nanny cellist dancer trainer GP fireman builder estate_agent "
    "flight_attendant social_worker truck_driver civil_servant financial_adviser tour_guide care_worker "
    "factory_worker warehouse_worker construction_worker shop_assistant dental_assistant police_officer project_lead"
)
TRADE = rf"(?:[a-z]+(?:(?<!ap)ologist|ographer|(?<!mag)ician|iatrist|smith)|[a-z]*(?:therap|sthet)ist|{_TRADES})"
ORGANISATION = any_of(
    "bank hospital university school council government startup ministry library museum company agency clinic "
    "restaurant bakery factory embassy hotel airline charity ngo nonprofit firm lab laboratory pharmacy bookshop "
    "bookstore supermarket airport nursery preschool daycare theatre theater cafe café bar brewery newspaper "
    "warehouse zoo consultancy studio cinema college farm post_office call_centre care_home nursing_home"
)
BELONGING = any_of(
    "car house boat sailboat piano bike bicycle motorcycle motorbike scooter campervan van truck guitar telescope "
    "cottage cabin garden drone kayak camper caravan e-bike sauna Tesla iPhone iPad MacBook Kindle 3D_printer"
)
GAME = any_of(
    "tennis chess football soccer basketball volleyball badminton golf hockey rugby squash cricket padel bridge "
    "poker go handball baseball piano guitar violin cello drums flute saxophone trumpet bass harp clarinet banjo "
    "ukulele accordion viola oboe bassoon trombone tuba mandolin harmonica recorder sitar lute darts snooker "
    "billiards backgammon scrabble Scrabble lacrosse curling netball softball Warhammer bagpipes keyboards organ "
    "table_tennis video_games board_games the_piano ice_hockey field_hockey water_polo double_bass electric_guitar"
)
# The last word of what people collect for pleasure: parcels and debts are collected, too.
COLLECTED = any_of(
    "stamps coins records vinyl LPs pens books postcards magnets comics watches shells seashells rocks stones "
    "minerals fossils cards toys figurines mugs teapots maps antiques posters cameras typewriters knives swords "
    "dolls butterflies autographs memorabilia art paintings prints sneakers hats bottles corks keychains spoons "
    "thimbles clocks guitars ornaments miniatures trains bears games consoles instruments orchids succulents globes "
    "radios plates badges pins patches banknotes matchboxes crystals gemstones manga tins lighters keyboards"
)
_ROUTINES = any_of(
    "run runs bike swims jogs walks cycles meditates swim jog walk cycle meditate train practice practise journal "
    "read stretch go_to go_for wake_up get_up work_out go_running go_swimming have_breakfast have_lunch have_dinner "
    "eat_breakfast eat_dinner eat_lunch work_from_home drink_coffee do_yoga go_to_bed call_my visit_my cook_dinner"
)
ROUTINE = rf"(?:{_ROUTINES}|go [a-z]+ing)"
EVENT = any_of(
    "appointment appt meeting exam interview checkup check-up surgery operation lesson class reservation dinner "
    "lunch call test dentist doctor haircut therapy session deadline concert presentation workshop conference "
    "viewing wedding graduation MRI scan vaccination physio MOT biopsy colonoscopy X-ray ultrasound hearing"
)
JOURNEY = any_of("flight train ferry bus trip cruise")
# What an instruction may begin with: without this list, "Always a pleasure" and "Never mind" would be rules.
IMPERATIVE = any_of(
    "add address answer append approve archive ask attach avoid back backup block book bring buy cc CC call cancel "
    "change charge check choose cite clean close commit compare compress confirm contact convert copy create "
    "cross-check deploy delete disclose discuss double-check draft email enable encrypt escalate estimate explain "
    "export file fill flag follow format forward get give go greet group guess hide highlight ignore include inform "
    "install introduce invite keep label leave limit link list log mail make mark mention merge message move mute "
    "name notify offer open order overwrite pay pick place plan post prefer present print prioritize prioritise "
    "propose provide publish push put quote read recommend refer refuse reject remind remove rename reply report "
    "request reschedule respond reveal review round run save say schedule search seek send set share shorten show "
    "sign play dim heat lock unlock water feed squash rebase touch lint force skip sort speak spell spend split "
    "start state stick stop store suggest summarize summarise switch tag talk tell test text translate turn type "
    "update upload use verify wait wake warn wrap write assume disturb cook invent look_up"
)
EVERY_AGENT = re.compile(
    r"\b(?:all of you|(?:all|every|any)(?: of)?(?: the| my)? (?:agents?|butlers?|assistants?|bots?)|everywhere)\b", re.I
)
