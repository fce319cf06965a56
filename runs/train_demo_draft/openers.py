"""First words of user turns, which the target then finishes itself, and parts of German sentences."""

from __future__ import annotations

QUESTION_OPENERS = [
    "Who played", "Who sings", "Who wrote", "Who won the", "Who is the", "Who was the first",
    "Who does the voice of", "Who invented", "Who owns", "When did", "When was the", "When does",
    "When is the", "Where is", "Where did the", "Where was", "Where does the", "What is the name of",
    "What year did", "What is the meaning of", "What are the", "What does", "What kind of", "What was the",
    "How many", "How long does", "How old is", "How did the", "How much", "Which country", "Which of the",
    "Why did", "Why is", "Is the movie", "Was there", "The first", "In which", "Who is the main",
    "Who has the most", "When do they", "What type of", "What part of", "Where do", "Who made the",
]  # fmt: skip

REQUEST_OPENERS = [
    "Write a", "Compose an", "Draft a professional email", "Describe a", "Write a persuasive",
    "Edit the following", "Pretend to be", "Imagine you are", "Assume the role of", "You are a", "Act as a",
    "Picture yourself as", "If a", "Suppose that", "David has", "A man is", "Given that",
    "What is the probability", "Solve", "If x", "When a number is", "Find the", "Write a function",
    "Implement a", "Write a Python program", "Write a C++", "Develop a program", "Explain the bug",
    "Given these categories", "Extract the", "Given the following", "Evaluate the following",
    "Identify the", "Analyze the following", "What is photosynthesis", "Describe the", "Explain the",
    "In the field of", "Which methods did", "How do", "What are the", "Provide insights", "Discuss",
    "Create a lesson plan", "Compare", "What if", "Can you explain", "Please", "Help me", "Suggest",
    "I want to", "My", "Tell me about", "Give me", "Summarize the", "List", "Design a", "Come up with",
]  # fmt: skip

GERMAN_OPENERS = [
    "Die", "Der", "Das", "Ein", "Eine", "Er", "Sie", "Wir", "Ich", "Es", "Im", "In der", "Mit", "Nach",
    "Bei", "Für", "Auf", "Die Polizei", "Der Präsident", "Die Regierung", "Am Montag", "Wenn", "Nicht",
    "Aber", "Am Ende", "Auch", "Viele", "Das Unternehmen", "In Deutschland", "Seit", "Heute", "Vor allem",
    "„ Wir", "Außerdem", "Damit",
]  # fmt: skip

NEWS_GERMAN = [
    [
        "Die Polizei", "Der Minister", "Die Bundeskanzlerin", "Ein Sprecher des Unternehmens",
        "Der Trainer", "Die Stadtverwaltung", "Der Präsident des Verbandes", "Eine junge Frau aus Hamburg",
        "Der Bürgermeister", "Die Feuerwehr", "Ein Gericht in München", "Der amerikanische Präsident",
        "Die Opposition", "Das Museum", "Der Verein", "Die Forscher der Universität Zürich",
        "Der Autobauer", "Die Mannschaft", "Ein Zeuge", "Die Europäische Union", "Der Schauspieler",
        "Die Gewerkschaft", "Die Schule", "Der Vorsitzende",
    ],
    [
        "erklärte am Montag ,", "teilte gestern mit ,", "sagte der Zeitung ,", "betonte in Berlin ,",
        "hofft ,", "geht davon aus ,", "kritisierte ,", "bestätigte am Abend ,", "befürchtet ,",
        "ist überzeugt ,", "weiß ,",
    ],
    [
        "dass die neue Straße", "dass der Haushalt", "dass das alte Gebäude", "dass die Verhandlungen",
        "dass der Prozess", "dass die Preise für Lebensmittel", "dass das Spiel", "dass die Kinder",
        "dass die Ergebnisse der Studie", "dass der Vertrag", "dass die Zahl der Besucher",
        "dass die Wirtschaft", "dass der Flughafen",
    ],
    [
        "im nächsten Jahr", "trotz der Krise", "in den kommenden Wochen", "wegen des schlechten Wetters",
        "wieder", "nach Angaben der Behörden", "zum ersten Mal", "bis Ende des Monats", "in ganz Europa",
        "nicht mehr", "endlich",
    ],
    [
        "eröffnet wird", "beendet werden kann", "verschoben werden muss", "erfolgreich sein wird",
        "steigen wird", "besser geworden ist", "verkauft werden soll", "für viele Menschen wichtig ist",
        "genehmigt wurde", "gefährlich bleibt", "finanziert werden muss", "veröffentlicht wird",
        "zu teuer ist",
    ],
]  # fmt: skip
